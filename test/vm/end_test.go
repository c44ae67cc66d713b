package vm

import (
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/guest"
	"vrdma.dev/vrdma/test/harness"
)

// ends: programs, agents and machines end in the middle of traffic. Each time the daemon releases everything, and
// serves the next.
func ends(t *testing.T, d *harness.Daemon, a *machine) {
	var empty harness.Footprint
	settled := func(t *testing.T, what string) {
		t.Helper()
		var now harness.Footprint
		if !harness.Poll(limit, func() bool {
			now = d.Footprint(t)
			return len(d.Status(t).Sessions) == 0 && (empty.FDs == 0 || now.FDs <= empty.FDs && now.Memfd <= empty.Memfd)
		}) {
			t.Fatalf("%s: sessions %q, %v; without programs it was %v", what, programs(t, d), now, empty)
		}
	}
	a.pair(t, "ibv_rc_pingpong", "-g", "0", "-n", "3")
	settled(t, "the first program")
	empty = d.Footprint(t)

	t.Run("program", func(t *testing.T) {
		for _, p := range traffic(t, d, a) {
			p.End()
			p.Ended(limit)
		}
		settled(t, "killed programs")
	})
	t.Run("agent", func(t *testing.T) {
		running := traffic(t, d, a)
		a.agent.End()
		a.agent.Ended(limit)
		for _, p := range running {
			if !p.Ended(limit) {
				t.Errorf("%s lives on without an agent\n%s", p.Title(), p.Output())
			}
		}
		a.startAgent(t)
		settled(t, "a killed agent")
		a.pair(t, "ibv_rc_pingpong", "-g", "0", "-n", "3")
	})
	t.Run("reset", func(t *testing.T) {
		traffic(t, d, a)
		a.Launch(t, "sh", "-c", "echo b >/proc/sysrq-trigger")
		settled(t, "a machine that was reset")
		a.AwaitStart(t)
		a.startAgent(t)
		a.pair(t, "ibv_rc_pingpong", "-g", "0", "-n", "3")
	})
	t.Run("machine", func(t *testing.T) {
		traffic(t, d, a)
		a.Kill()
		settled(t, "a killed machine")
	})
	d.LaunchWith(t, []string{"--nic", "red/a"}, "ibv_devinfo").OK(t, limit) // the NIC is free
}

// traffic starts endless programs in a machine and waits until they send.
func traffic(t *testing.T, d *harness.Daemon, m *machine) []*guest.Process {
	t.Helper()
	argv := []string{"ib_write_bw", "-x", "0", "-F", "-D", "600"}
	server := m.verbs(t, argv...)
	m.Await(t, server, 18515)
	client := m.verbs(t, append(argv, "127.0.0.1")...)
	if !harness.Poll(limit, func() bool { return sends(t, d) || client.Ended(0) || server.Ended(0) }) || client.Ended(0) || server.Ended(0) {
		t.Fatalf("nobody sends: %s\n%s\n%s\n%s", client.Fate(), client.Output(), server.Fate(), server.Output())
	}
	return []*guest.Process{client, server}
}

// sends reports whether a queue pair of a program in a machine has sent data.
func sends(t *testing.T, d *harness.Daemon) bool {
	t.Helper()
	for _, s := range d.Status(t).Sessions {
		for _, q := range s.QPs {
			if q.Outstanding > 0 && strings.Contains(s.Program, "@") {
				return true
			}
		}
	}
	return false
}
