package daemon

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/tenancy/provision"
)

// SystemConfig is the configuration file of the system's daemon, as its unit has it.
const SystemConfig = "/etc/vrdma/vrdma.yaml"

// readFile reads the file of --config into o. Flags that were given keep their values. The error has one line for each mistake, with
// file and line.
func (o *Options) readFile() error {
	if o.Config == "" {
		return nil
	}
	text, err := os.ReadFile(o.Config)
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	return o.parseFile(o.Config, text)
}

// parseFile is readFile for a text.
func (o *Options) parseFile(path string, text []byte) error {
	p := parser{path: path, settings: o.Settings(), seen: make(map[string]int)}
	p.parse(text)
	if len(p.mistakes) > 0 {
		return errors.Join(p.mistakes...)
	}
	p.set(o.Given)
	l := provision.SetLimits(nic.DefaultLimits, o.Limits)
	if err := l.Check(); err != nil && len(p.mistakes) == 0 {
		field, _, _ := strings.Cut(err.Error(), " ")
		p.mistake(cmp.Or(p.seen[field], 1), "%v", err)
	}
	return errors.Join(p.mistakes...)
}

// Load reads the file of --config, as the daemon does when it starts.
func (o *Options) Load() error { return o.readFile() }

// CheckConfig returns what is wrong in a configuration file.
func CheckConfig(path string) error {
	o := NewOptions()
	o.Config = path
	return o.readFile()
}

// A parser reads a configuration file.
type parser struct {
	path     string
	settings []Setting
	values   []fileValue
	seen     map[string]int // the lines of fields
	mistakes []error
}

// A fileValue is what the file says of a setting.
type fileValue struct {
	setting *Setting
	texts   []string
	lines   []int
}

// set sets the values of the file, but those of flags that were given; nil: there are no flags.
func (p *parser) set(given func(flag string) bool) {
	for _, v := range p.values {
		if v.setting.Flag != "" && given != nil && given(v.setting.Flag) {
			continue
		}
		if v.setting.List() {
			*v.setting.Into.(*[]string) = nil
		}
		for i, text := range v.texts {
			if err := v.setting.Set(text); err != nil {
				p.mistake(v.lines[i], "%s is %q: %v", v.setting.Key, text, err)
			}
		}
	}
}

func (p *parser) mistake(line int, format string, args ...any) {
	p.mistakes = append(p.mistakes, fmt.Errorf("%s:%d: %s", p.path, line, fmt.Sprintf(format, args...)))
}

// yamlLine is the position in an error of package yaml.
var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

func (p *parser) parse(text []byte) {
	d := yaml.NewDecoder(bytes.NewReader(text))
	var doc yaml.Node
	if err := d.Decode(&doc); errors.Is(err, io.EOF) {
		return // the file is empty
	} else if err != nil {
		line, where := 1, yamlLine.FindStringSubmatch(err.Error())
		if where != nil && where[1] != "" {
			line, _ = strconv.Atoi(where[1])
		}
		p.mistake(line, "%s", yamlLine.ReplaceAllString(err.Error(), ""))
		return
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		p.mistake(1, "the file has several documents: a configuration is one, without ---")
		return
	}
	if len(doc.Content) == 1 && doc.Content[0].Tag != "!!null" {
		p.mapping("", doc.Content[0])
	}
}

// mapping reads the fields below prefix.
func (p *parser) mapping(prefix string, n *yaml.Node) {
	if n.Kind != yaml.MappingNode {
		where := "the file"
		if prefix != "" {
			where = strings.TrimSuffix(prefix, ".")
		}
		p.mistake(n.Line, "%s is %s: want %s", where, kindOf(n), strings.Join(p.fields(prefix), ", "))
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		key := prefix + name.Value
		if first, twice := p.seen[key]; twice {
			p.mistake(name.Line, "%s is in line %d, too: write it once", key, first)
			continue
		}
		at := slices.IndexFunc(p.settings, func(s Setting) bool { return s.Key == key })
		deeper := slices.ContainsFunc(p.settings, func(s Setting) bool { return strings.HasPrefix(s.Key, key+".") })
		switch {
		case name.Kind != yaml.ScalarNode || at < 0 && !deeper:
			p.mistake(name.Line, "unknown field %q: choose among %s", key, strings.Join(p.fields(prefix), ", "))
			continue
		case value.Tag == "!!null" && value.Kind == yaml.ScalarNode: // a name without a value
		case deeper:
			p.mapping(key+".", value)
		default:
			p.value(&p.settings[at], value)
		}
		p.seen[key] = name.Line
	}
}

// value reads the value of one setting.
func (p *parser) value(s *Setting, n *yaml.Node) {
	v := fileValue{setting: s}
	elements := []*yaml.Node{n}
	if s.List() && n.Kind == yaml.SequenceNode {
		elements = n.Content
	}
	for _, e := range elements {
		if e.Kind != yaml.ScalarNode || e.Tag == "!!null" {
			want := "one value"
			if s.List() {
				want = "a list of values, [a, b]"
			}
			p.mistake(e.Line, "%s is %s: want %s", s.Key, kindOf(e), want)
			return
		}
		if strings.ContainsFunc(e.Value, unicode.IsControl) {
			p.mistake(e.Line, "%s is %q: a value has no control characters", s.Key, e.Value)
			return
		}
		v.texts, v.lines = append(v.texts, e.Value), append(v.lines, e.Line)
	}
	p.values = append(p.values, v)
}

// fields are the names that exist below prefix.
func (p *parser) fields(prefix string) []string {
	var out []string
	for _, s := range p.settings {
		if rest, ok := strings.CutPrefix(s.Key, prefix); ok && s.Key != "" {
			if name, _, _ := strings.Cut(rest, "."); !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
	}
	slices.Sort(out)
	return out
}

// kindOf names a part of a file.
func kindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a group of fields"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias, which this file cannot have"
	}
	if n.Value == "" {
		return "empty"
	}
	return strconv.Quote(n.Value)
}

// PrintConfig formats settings as a configuration file. Those with the default value are comments.
func (o *Options) PrintConfig() string {
	var b strings.Builder
	defaults := NewOptions().Settings()
	group := ""
	for i, s := range o.Settings() {
		name, indent := s.Key, ""
		above, rest, nested := strings.Cut(s.Key, ".")
		if nested {
			name, indent = rest, "  "
		} else {
			above = ""
		}
		if above != group && above != "" {
			hash := "#"
			for j, t := range o.Settings() {
				if strings.HasPrefix(t.Key, above+".") && !slices.Equal(t.Values(), defaults[j].Values()) {
					hash = ""
				}
			}
			fmt.Fprintf(&b, "%s%s:\n", hash, above)
		}
		group = above
		hash, values := "#", s.Values()
		if !slices.Equal(values, defaults[i].Values()) {
			hash = ""
		}
		fmt.Fprintf(&b, "# %s\n%s%s%s: %s\n", s.Help, hash, indent, name, yamlText(&s, values))
	}
	return b.String()
}

// plainText is text that YAML needs no quotes for, and does not take for a null.
var plainText = regexp.MustCompile(`^/?[A-Za-z0-9][A-Za-z0-9/._-]*$`)

// yamlText formats the values of a setting.
func yamlText(s *Setting, values []string) string {
	quoted := make([]string, len(values))
	for i, v := range values {
		if quoted[i] = v; !plainText.MatchString(v) || strings.EqualFold(v, "null") {
			text, _ := json.Marshal(v) // a string can be marshalled
			quoted[i] = string(text)
		}
	}
	switch s.Into.(type) {
	case *[]string:
		return "[" + strings.Join(quoted, ", ") + "]"
	case *string:
		if len(quoted) == 0 {
			return `""`
		}
	}
	if len(quoted) == 0 {
		return "0"
	}
	return quoted[0]
}
