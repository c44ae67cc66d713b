package guest

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/guest/talk"
	"vrdma.dev/vrdma/test/harness"
)

// Process is a program that runs in a guest.
type Process struct {
	Name  string
	guest *Guest
	id    int
	done  chan struct{}

	mu   sync.Mutex // guards all below
	out  strings.Builder
	code int
}

// Launch starts a program in the guest. It is ended with the test.
func (g *Guest) Launch(t testing.TB, argv ...string) *Process {
	t.Helper()
	p := g.ask(t, talk.Request{Run: argv}, strings.Join(argv, " "))
	t.Cleanup(p.End)
	return p
}

// Program implements harness.Machine.
func (g *Guest) Program(t testing.TB, argv ...string) harness.Program { return g.Launch(t, argv...) }

// Run runs a program, requires status 0, and returns its output.
func (g *Guest) Run(t testing.TB, limit time.Duration, argv ...string) string {
	t.Helper()
	p := g.Launch(t, argv...)
	if !p.Ended(limit) || p.Code() != 0 {
		t.Fatalf("guest: %s: %s (limit %v)\n%s", p.Name, p.Fate(), limit, p.Output())
	}
	return p.Output()
}

// Install copies a program into the guest, under the same name.
func (g *Guest) Install(t testing.TB, path string) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	p := g.ask(t, talk.Request{File: path, Content: content}, "install "+path)
	if !p.Ended(bootLimit) || p.Code() != 0 {
		t.Fatalf("guest: %s: %s\n%s", p.Name, p.Fate(), p.Output())
	}
}

// Await implements harness.Machine.
func (g *Guest) Await(t testing.TB, p harness.Program, port int) {
	t.Helper()
	q := g.ask(t, talk.Request{Listen: port}, "listen "+strconv.Itoa(port))
	select {
	case <-q.done:
	case <-p.Done():
	case <-time.After(bootLimit): // the agent gives up before
	}
	if p.Ended(0) || !q.Ended(0) || q.Code() != 0 {
		t.Fatalf("guest: %s does not listen on port %d: %s\n%s", p.Title(), port, p.Fate(), p.Output())
	}
}

func (p *Process) take(e talk.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out.Write(e.Output)
	if e.Exit != nil {
		p.code = *e.Exit
		close(p.done)
	}
}

// End kills the program, if it still runs.
func (p *Process) End() {
	p.guest.mu.Lock()
	defer p.guest.mu.Unlock()
	if _, runs := p.guest.jobs[p.id]; runs {
		p.guest.send(talk.Request{ID: p.id, Kill: int(syscall.SIGKILL)}) // without a guest there is no program
	}
}

// Title is the command line.
func (p *Process) Title() string { return "guest: " + p.Name }

// Done is closed when the program has ended, or the guest.
func (p *Process) Done() <-chan struct{} { return p.done }

// Ended waits up to d and reports whether the program has ended.
func (p *Process) Ended(d time.Duration) bool {
	return harness.Within(p.done, d)
}

// Code is the exit status of a program that has ended.
func (p *Process) Code() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.code
}

// Output is everything printed so far.
func (p *Process) Output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// Fate says how the program ended, if it did.
func (p *Process) Fate() string {
	if !p.Ended(0) {
		return "still running"
	}
	return "exit status " + strconv.Itoa(p.Code())
}
