package doctor

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// An Outcome is the result of a check.
type Outcome string

// The outcomes.
const (
	Yes     Outcome = "yes"
	No      Outcome = "no"
	Unknown Outcome = "unknown"
)

// A Finding is the answer of a check.
type Finding struct {
	Group   string   `json:"group"`
	Name    string   `json:"name"`
	Outcome Outcome  `json:"outcome"`
	Found   string   `json:"found"`         // a version, a number, or why it is missing
	Do      string   `json:"do,omitempty"`  // what to do if it is missing
	For     []string `json:"for,omitempty"` // the suites that use it
	Needed  bool     `json:"needed"`        // they cannot run without it
}

// A Check looks for one feature of the machine.
type Check struct {
	group string
	name  string
	// needs lists the suites that cannot run without it, helps those that run better or show more. Neither: it is for a user's own
	// experiments.
	needs, helps []string
	do           string // what to do if it is missing
	look         func(m *Machine) (Outcome, string)
}

// Experiments are the suites that checks name.
var Experiments = []string{"quick", "speed", "thesis", "slides", "lab", "progress", "mikelangelo"}

// A Machine is what checks examine.
type Machine struct {
	// Root is / except in tests.
	Root string
	// Find reports whether a program is installed.
	Find func(name string) bool
	// Run runs a command and returns its output. If namespace is true, the command has its own network namespace and may
	// change the network in it.
	Run func(namespace bool, name string, args ...string) (string, error)
	// Boot boots a kernel under KVM and returns what it printed; nil: it cannot.
	Boot func(kernel string) (string, error)
	// GuestKernel is the kernel of experiments with guests; it may not exist.
	GuestKernel string
}

// Here returns this machine.
func Here() *Machine {
	m := &Machine{Root: "/", Find: find, Run: run, Boot: bootKVM}
	if dir, err := os.UserCacheDir(); err == nil {
		m.GuestKernel = filepath.Join(dir, "vrdma", "guest", "vmlinux") // of package rxeguest
	}
	return m
}

// patience is the timeout of a command.
const patience = 5 * time.Second

// path also has the directories of root's programs: any user may ask for their version.
func path() string { return os.Getenv("PATH") + ":/usr/sbin:/sbin" }

func find(name string) bool {
	for _, dir := range filepath.SplitList(path()) {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return true
		}
	}
	return false
}

func run(namespace bool, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c := exec.CommandContext(ctx, "/bin/sh", append([]string{"-c", `exec "$@"`, "sh", name}, args...)...) // it searches our path
	c.WaitDelay = time.Second
	c.Env = append(os.Environ(), "LC_ALL=C", "PATH="+path())
	if namespace {
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
		if uid := os.Geteuid(); uid != 0 {
			c.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
			c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: uid, Size: 1}}
			c.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
		}
	}
	out, err := c.CombinedOutput()
	if ctx.Err() != nil {
		err = fmt.Errorf("%s did not end within %v", name, patience)
	}
	return string(out), err
}

// All returns the checks in the order in which they are printed.
func All() []Check {
	return slices.Concat(verbs, network, processors, hardware, machines, containers, tools)
}

// Select returns the checks that matter to an experiment; all if it is "".
func Select(checks []Check, experiment string) ([]Check, error) {
	if experiment == "" {
		return checks, nil
	}
	if !slices.Contains(Experiments, experiment) {
		return nil, fmt.Errorf("no experiment is named %q: choose one of %s", experiment, strings.Join(Experiments, ", "))
	}
	return slices.DeleteFunc(slices.Clone(checks), func(p Check) bool {
		return !slices.Contains(p.needs, experiment) && !slices.Contains(p.helps, experiment)
	}), nil
}

// Examine runs all checks, some at the same time. Needed refers to an experiment, or to any if it is "".
func Examine(m *Machine, checks []Check, experiment string) []Finding {
	found := make([]Finding, len(checks))
	var wait sync.WaitGroup
	running := make(chan struct{}, 4)
	for i, p := range checks {
		running <- struct{}{}
		wait.Go(func() {
			defer func() { <-running }()
			found[i] = p.examine(m, experiment)
		})
	}
	wait.Wait()
	return found
}

func (p *Check) examine(m *Machine, experiment string) Finding {
	outcome, what := p.look(m)
	f := Finding{Group: p.group, Name: p.name, Outcome: outcome, Found: what, For: slices.Concat(p.needs, p.helps)}
	f.Needed = slices.Contains(p.needs, experiment) || experiment == "" && len(p.needs) > 0
	if outcome != Yes {
		f.Do = p.do
	}
	return f
}

// Versions returns the versions of the installed measuring tools.
func Versions(m *Machine) map[string]string {
	versions := make(map[string]string)
	for _, f := range Examine(m, tools, "") {
		if f.Outcome == Yes {
			versions[f.Name] = f.Found
		}
	}
	return versions
}

// Missing returns the findings without which the experiment cannot run.
func Missing(findings []Finding) (list []Finding) {
	for _, f := range findings {
		if f.Needed && f.Outcome == No {
			list = append(list, f)
		}
	}
	return list
}

// read returns the trimmed text of a file.
func (m *Machine) read(path string) (string, error) {
	b, err := os.ReadFile(filepath.Join(m.Root, path))
	return strings.TrimSpace(string(b)), err
}

// glob returns the files that match a pattern.
func (m *Machine) glob(pattern string) []string {
	list, err := filepath.Glob(filepath.Join(m.Root, pattern))
	if err != nil {
		panic(err) // an invalid pattern
	}
	return list
}

var number = regexp.MustCompile(`\d+(\.\d+)+`)

// program looks for a program and its version. Some print no version, and some print it and fail.
func program(name string, args ...string) func(m *Machine) (Outcome, string) {
	return func(m *Machine) (Outcome, string) {
		if !m.Find(name) {
			return No, "not installed"
		}
		if len(args) == 0 {
			return Yes, "installed"
		}
		out, _ := m.Run(false, name, args...)
		return Yes, cmp.Or(number.FindString(out), "installed")
	}
}

// tries runs a script in a network namespace of its own.
func tries(script string) func(m *Machine) (Outcome, string) {
	return func(m *Machine) (Outcome, string) {
		out, err := m.Run(true, "sh", "-e", "-c", script)
		switch {
		case err == nil:
			return Yes, "works"
		case strings.Contains(out, "not found"):
			return Unknown, "cannot be tried: " + lastLine(out)
		}
		return No, cmp.Or(lastLine(out), err.Error())
	}
}

// lastLine returns the last line that is not empty.
func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}
