package harness

import (
	"fmt"
	"syscall"
	"testing"
	"time"
)

// Program is a program that a test started, on any machine.
type Program interface {
	Title() string
	Done() <-chan struct{}
	Ended(time.Duration) bool
	Code() int
	Fate() string
	Output() string
	End()
}

// Machine is where programs with an RDMA device run: beside a daemon, or in a guest.
type Machine interface {
	// Program starts one.
	Program(t testing.TB, argv ...string) Program
	// Await waits until p listens on a TCP port.
	Await(t testing.TB, p Program, port int)
}

// Program implements Machine.
func (d *Daemon) Program(t testing.TB, argv ...string) Program { return d.Launch(t, argv...) }

// Await implements Machine.
func (d *Daemon) Await(t testing.TB, p Program, port int) {
	t.Helper()
	Listening(t, p.(*Process), port, patience)
}

// Title implements Program.
func (p *Process) Title() string { return p.Name }

// End kills the program, if it still runs.
func (p *Process) End() {
	if !p.Ended(0) {
		p.Signal(syscall.SIGKILL)
	}
}

// Conversation is a server on one machine and its client on another.
type Conversation struct{ Server, Client Program }

// Converse starts a server and, when it listens on port, its client.
func Converse(t testing.TB, port int, at Machine, server []string, from Machine, client []string) *Conversation {
	t.Helper()
	c := &Conversation{Server: at.Program(t, server...)}
	at.Await(t, c.Server, port)
	c.Client = from.Program(t, client...)
	return c
}

// OK waits for both, requires status 0, and returns their output.
func (c *Conversation) OK(t testing.TB, limit time.Duration) (server, client string) {
	t.Helper()
	server, client, err := c.Result(limit)
	if err != nil {
		t.Fatal(err)
	}
	return server, client
}

// Result waits for both sides and returns their output; a failure is an error. Each side has the limit, but only
// seconds after the other has failed.
func (c *Conversation) Result(limit time.Duration) (server, client string, err error) {
	first, second := c.Client, c.Server
	select {
	case <-c.Client.Done():
	case <-c.Server.Done():
		first, second = c.Server, c.Client
	case <-time.After(limit):
	}
	if first.Ended(0) && first.Code() == 0 {
		second.Ended(limit)
	} else {
		second.Ended(5 * time.Second)
	}
	for _, p := range []Program{c.Client, c.Server} {
		if !p.Ended(0) || p.Code() != 0 {
			text := c.String()
			c.Client.End()
			c.Server.End()
			return "", "", fmt.Errorf("failed (limit %v)\n%s", limit, text)
		}
	}
	return c.Server.Output(), c.Client.Output(), nil
}

// String describes the state of both.
func (c *Conversation) String() string {
	s := "server " + c.Server.Title() + ": " + c.Server.Fate() + "\n" + c.Server.Output()
	return s + "\nclient " + c.Client.Title() + ": " + c.Client.Fate() + "\n" + c.Client.Output()
}
