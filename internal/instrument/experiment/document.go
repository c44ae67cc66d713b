package experiment

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// APIVersion is the version of documents.
const APIVersion = "vrdma.io/v1"

// An Experiment is the content of a document.
type Experiment struct {
	Name   string
	Source string // the file, for error messages
	Spec   Spec
}

// A Spec is the axes of an experiment. Each has at least one value.
type Spec struct {
	Suite string `yaml:"suite"`
	Title string `yaml:"title"`
	// Like names the published figures that it repeats.
	Like       string   `yaml:"like,omitempty"`
	Settings   []string `yaml:"settings"`
	Transports []string `yaml:"transports"`
	Tools      []string `yaml:"tools"`
	Sizes      []Size   `yaml:"sizes,omitempty"`
	Pairs      []int    `yaml:"pairs,omitempty"`
	MTU        []int    `yaml:"mtu,omitempty"`
	// PathMTU is the path MTU of verbs, at most the link's; 0: the tool's choice.
	PathMTU []int `yaml:"pathMTU,omitempty"`
	// Rate limits the link between hosts, such as 1gbit; "": no limit.
	Rate []string `yaml:"rate,omitempty"`
	// Delay is the link's delay in each direction, such as 100us; "": none.
	Delay []string `yaml:"delay,omitempty"`
	Wait  []string `yaml:"wait,omitempty"`
	// PerSide is how many containers or guests each side has. Each of them has the pairs.
	PerSide []int `yaml:"perSide,omitempty"`
	// Share limits each server, in percent of a processor.
	Share []int `yaml:"share,omitempty"`
	// QueuePairs is how many queue pairs each perftest program has.
	QueuePairs []int `yaml:"queuePairs,omitempty"`
	// Metrics are the metrics that the report draws; empty: the metric of each tool.
	Metrics []string `yaml:"metrics,omitempty"`
	// Panels draws each tool separately, as some publications do.
	Panels  bool `yaml:"panels,omitempty"`
	Rounds  int  `yaml:"rounds,omitempty"`
	Seconds int  `yaml:"seconds,omitempty"`
	// Why says in a sentence or two what to look for.
	Why string `yaml:"why,omitempty"`
}

// A Size is a number of bytes, such as 64 or 64KiB.
type Size int64

// units are the suffixes of a size.
var units = []struct {
	name string
	n    int64
}{{"GiB", 1 << 30}, {"GB", 1e9}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}, {"", 1}}

// ParseSize reads a size.
func ParseSize(text string) (Size, error) {
	for _, u := range units {
		digits, found := strings.CutSuffix(text, u.name)
		if !found {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
		if err != nil || n <= 0 || n > mostBytes/u.n {
			return 0, fmt.Errorf("%q is no size: want a number of bytes of at most 1 GiB, such as 64 or 64KiB", text)
		}
		return Size(n * u.n), nil
	}
	panic("unreachable: the last unit is empty")
}

const mostBytes = 1 << 30

func (s Size) String() string {
	for _, u := range units {
		if int64(s) >= u.n && int64(s)%u.n == 0 && u.name != "" {
			return fmt.Sprintf("%d %s", int64(s)/u.n, u.name)
		}
	}
	return fmt.Sprint(int64(s))
}

// UnmarshalYAML reads a size. Its error has the line.
func (s *Size) UnmarshalYAML(n *yaml.Node) error {
	v, err := ParseSize(n.Value)
	if err != nil || n.Kind != yaml.ScalarNode {
		return fmt.Errorf("line %d: %w", n.Line, err)
	}
	*s = v
	return nil
}

// MarshalYAML writes the size as text.
func (s Size) MarshalYAML() (any, error) { return strings.ReplaceAll(s.String(), " ", ""), nil }

// A document is one YAML document of a file.
type document struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
	Metadata   struct {
		Name string `yaml:"name"`
	} `yaml:"metadata"`
	Spec Spec `yaml:"spec"`
}

// most is how many experiments a file may have.
const most = 1000

// Parse reads the experiments of a file.
func Parse(file string, text []byte) ([]*Experiment, error) {
	var list []*Experiment
	lines := documentLines(text)
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	for i := 0; ; i++ {
		var doc document
		err := d.Decode(&doc)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %s", file, plain(err))
		}
		if i >= most {
			return nil, fmt.Errorf("%s: more than %d experiments: use several files", file, most)
		}
		e, err := doc.experiment(file)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, lines[min(i, len(lines)-1)], err)
		}
		list = append(list, e)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s holds no experiment: see vrdma bench show quick for one", file)
	}
	return list, nil
}

// documentLines returns the lines on which documents begin, found by their separators.
func documentLines(text []byte) []int {
	lines := []int{1}
	n := 0
	for line := range bytes.Lines(text) {
		n++
		if bytes.HasPrefix(line, []byte("---")) && n > 1 {
			lines = append(lines, n+1)
		}
	}
	return lines
}

var inType = regexp.MustCompile(` in type experiment\.\w+`)

// plain rewrites an error of the YAML library for users.
func plain(err error) string {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	text = strings.ReplaceAll(text, "unmarshal errors:\n  ", "")
	text = inType.ReplaceAllString(text, "")
	return strings.ReplaceAll(text, "not found", "is not known")
}

var label = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// experiment checks a document and sets defaults.
func (doc *document) experiment(file string) (*Experiment, error) {
	e := &Experiment{Name: doc.Metadata.Name, Source: file, Spec: doc.Spec}
	switch {
	case doc.APIVersion != APIVersion:
		return nil, fmt.Errorf("apiVersion is %q: this vrdma knows %s", doc.APIVersion, APIVersion)
	case doc.Kind != "Experiment":
		return nil, fmt.Errorf("kind is %q: want Experiment", doc.Kind)
	case !label.MatchString(e.Name):
		return nil, fmt.Errorf("metadata.name is %q: want lower-case letters, digits and hyphens", e.Name)
	}
	if err := e.Spec.complete(); err != nil {
		return nil, fmt.Errorf("experiment %s: %w", e.Name, err)
	}
	if len(e.Cells()) == 0 {
		return nil, fmt.Errorf("experiment %s: nothing is left to measure: no tool of %s works over %s", e.Name, strings.Join(e.Spec.Tools, ", "), strings.Join(e.Spec.Transports, ", "))
	}
	return e, nil
}

// complete sets defaults and rejects invalid values.
func (s *Spec) complete() error {
	if s.Suite == "" {
		s.Suite = "own"
	}
	if s.Rounds == 0 {
		s.Rounds = 5
	}
	if s.Seconds == 0 {
		s.Seconds = 2
	}
	if len(s.Pairs) == 0 {
		s.Pairs = []int{1}
	}
	if len(s.PerSide) == 0 {
		s.PerSide = []int{1}
	}
	if len(s.Share) == 0 {
		s.Share = []int{100}
	}
	if len(s.QueuePairs) == 0 {
		s.QueuePairs = []int{1}
	}
	if len(s.MTU) == 0 {
		s.MTU = []int{9000}
	}
	if len(s.PathMTU) == 0 {
		s.PathMTU = []int{0}
	}
	if len(s.Rate) == 0 {
		s.Rate = []string{""}
	}
	if len(s.Delay) == 0 {
		s.Delay = []string{""}
	}
	for _, v := range s.PathMTU {
		if v != 0 && !slices.Contains([]int{256, 512, 1024, 2048, 4096}, v) {
			return fmt.Errorf("spec.pathMTU: %d: want 256, 512, 1024, 2048 or 4096", v)
		}
	}
	for _, v := range s.Rate {
		if v != "" && !rate.MatchString(v) {
			return fmt.Errorf("spec.rate: %q: want a number with kbit, mbit or gbit, such as 1gbit", v)
		}
	}
	for _, v := range s.Delay {
		if v != "" && !delay.MatchString(v) {
			return fmt.Errorf("spec.delay: %q: want a number with us or ms, such as 100us", v)
		}
	}
	if len(s.Wait) == 0 {
		s.Wait = []string{Poll}
	}
	if len(s.Sizes) == 0 {
		s.Sizes = []Size{64 << 10}
	}
	for _, axis := range []struct {
		name   string
		values []string
		known  []string
	}{{"settings", s.Settings, Settings}, {"transports", s.Transports, Transports}, {"tools", s.Tools, ToolNames()}, {"wait", s.Wait, []string{Poll, Event}}} {
		if len(axis.values) == 0 {
			return fmt.Errorf("spec.%s is empty: choose among %s", axis.name, strings.Join(axis.known, ", "))
		}
		for _, v := range axis.values {
			if !slices.Contains(axis.known, v) {
				return fmt.Errorf("spec.%s: %q is not known: choose among %s", axis.name, v, strings.Join(axis.known, ", "))
			}
		}
	}
	for _, v := range s.Metrics {
		if !slices.Contains(Metrics, v) {
			return fmt.Errorf("spec.metrics: %q is not known: choose among %s", v, strings.Join(Metrics, ", "))
		}
	}
	for _, bound := range []struct {
		name      string
		values    []int
		low, high int
	}{{"pairs", s.Pairs, 1, mostPairs}, {"perSide", s.PerSide, 1, 16}, {"share", s.Share, 5, 100}, {"queuePairs", s.QueuePairs, 1, 1024}, {"mtu", s.MTU, 576, 65535}, {"rounds", []int{s.Rounds}, 1, 1000}, {"seconds", []int{s.Seconds}, 1, 600}} {
		for _, v := range bound.values {
			if v < bound.low || v > bound.high {
				return fmt.Errorf("spec.%s: %d: want %d to %d", bound.name, v, bound.low, bound.high)
			}
		}
	}
	if n := slices.Max(s.Pairs) * slices.Max(s.PerSide); n > mostPairs {
		return fmt.Errorf("spec.pairs and spec.perSide: %d pairs in all: want at most %d", n, mostPairs)
	}
	if n := len(s.Settings) * len(s.Transports) * len(s.Tools) * len(s.Sizes) * len(s.Pairs) * len(s.MTU) * len(s.PathMTU) * len(s.Rate) * len(s.Wait) * len(s.PerSide) * len(s.Share) * len(s.QueuePairs) * len(s.Delay); n > mostCells {
		return fmt.Errorf("%d combinations: want at most %d; make two experiments of it", n, mostCells)
	}
	return nil
}

// The formats that tc accepts.
var (
	rate  = regexp.MustCompile(`^[1-9][0-9]{0,5}[kmg]bit$`)
	delay = regexp.MustCompile(`^[1-9][0-9]{0,5}[um]s$`)
)

// mostPairs is how many pairs of programs may run at the same time.
const mostPairs = 64

// mostCells is how many combinations an experiment may have.
const mostCells = 10000

// Text returns the experiment as a document.
func (e *Experiment) Text() ([]byte, error) {
	doc := document{APIVersion: APIVersion, Kind: "Experiment", Spec: e.Spec}
	doc.Metadata.Name = e.Name
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(&doc); err != nil {
		return nil, err
	}
	return b.Bytes(), enc.Close()
}
