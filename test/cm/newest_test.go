package cm

import (
	"strconv"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

// newest runs a daemon's programs with another rdma-core, the newest or the oldest.
type newest struct {
	*harness.Daemon
	root *harness.Debian
}

// Program implements harness.Machine.
func (n newest) Program(t testing.TB, argv ...string) harness.Program {
	t.Helper()
	return n.root.Launch(t, n.Daemon, nil, argv...)
}

// The newest librdmacm's tools talk to each other and to those of the oldest.
func TestNewest(t *testing.T) {
	d, old := device(t)
	next := workload.Host{Machine: newest{d, harness.NewestRoot(t)}, IP: old.IP}
	both := []struct {
		name     string
		at, from workload.Host
	}{{"new", next, next}, {"old_client", next, old}, {"old_server", old, next}}
	for _, w := range workload.ManagedTools(20) {
		switch name, _, _ := strings.Cut(w.Name, "/"); {
		case strings.HasPrefix(w.Client, "ib_"): // perftest is no part of rdma-core
		case name == "rping", name == "cmtime": // below
		case w.Name == "ucmatose", w.Name == "udaddy":
			for _, c := range both {
				t.Run(w.Name+"/"+c.name, func(t *testing.T) { w.Run(t, c.at, c.from, minute) })
			}
		default:
			t.Run(w.Name, func(t *testing.T) { w.Run(t, next, next, minute) })
		}
	}
	for _, c := range both {
		t.Run("rping/"+c.name, func(t *testing.T) { ping(t, c.at, c.from) })
	}
	t.Run("cmtime", func(t *testing.T) {
		port := harness.FreePort(t)
		args := []string{"cmtime", "-b", next.IP, "-C", next.IP, "-p", strconv.Itoa(port), "-c", "50"}
		c := harness.Converse(t, port, next, append(args, "-L"), next, args)
		if _, out := c.OK(t, minute); !strings.Contains(out, "full connect") {
			t.Errorf("printed\n%s", out)
		}
	})
	t.Run("user events", func(t *testing.T) {
		p := next.Program(t, harness.CompileWith(t, "userevent", "gcc", "-lrdmacm", "-libverbs"))
		if !p.Ended(minute) || p.Code() != 0 {
			p.End()
			t.Errorf("%s\n%s", p.Fate(), p.Output())
		}
	})
	t.Run("rcopy", func(t *testing.T) { workload.Copy(t, next, next, 8<<20, minute) })
}

// ping runs rping until all messages are exchanged. The newest rping may then wait for ever: one thread checks that
// there is an event, and another thread destroys the event before the first one reads it. Under Linux the same race
// exists, but its window is shorter.
func ping(t *testing.T, at, from workload.Host) {
	t.Helper()
	const port = 7174
	manager := at.Machine.(workload.Manager)
	manager.AwaitVacant(t, port)
	s := at.Program(t, "stdbuf", "-oL", "rping", "-s", "-v", "-V", "-C", "20")
	manager.AwaitManaged(t, s, port)
	c := from.Program(t, "stdbuf", "-oL", "rping", "-c", "-v", "-V", "-a", at.IP, "-C", "20")
	defer s.End()
	defer c.End()
	for _, p := range []harness.Program{c, s} {
		if !harness.Poll(minute, func() bool { return strings.Contains(p.Output(), "rdma-ping-19: ") }) || strings.Contains(p.Output(), "error") {
			t.Errorf("%s: %s\n%s", p.Title(), p.Fate(), p.Output())
		}
	}
}
