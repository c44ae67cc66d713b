package vm

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/handover"
	"vrdma.dev/vrdma/test/guest"
	"vrdma.dev/vrdma/test/harness"
)

// upgraded: programs of a machine go on while the daemon is replaced: those that poll and those that sleep, over verbs and rdma_cm. They
// check their data. The same holds for next daemons that fail. Afterwards programs open the device and end as before.
func upgraded(t *testing.T, d *harness.Daemon, m *machine) {
	agent := m.agent.Output()
	load := traffic(t, d, m)
	server := m.verbs(t, "rping", "-s", "-a", m.ip, "-V", "-S", "100")
	client := pinging(t, m, server)
	endless := append(load, server, client)
	flows := func(when string) {
		t.Helper()
		bytes, pings := sent(t, d, m.nic), len(client.Output())
		ended := func() bool { return slices.ContainsFunc(endless, func(p *guest.Process) bool { return p.Ended(0) }) }
		if !harness.Poll(limit, func() bool {
			return sent(t, d, m.nic) > bytes+1<<20 && len(client.Output()) > pings+1000 || ended()
		}) || ended() {
			var b strings.Builder
			for _, p := range endless {
				fmt.Fprintf(&b, "%s: %s\n%s\n", p.Title(), p.Fate(), harness.Tail(p.Output(), 10))
			}
			t.Fatalf("%s: of %d bytes and %d of pings there are %d and %d now\n%s", when, bytes, pings, sent(t, d, m.nic), len(client.Output()), &b)
		}
	}
	flows("at first")
	for i := range harness.Pick(3, 10) {
		d.Upgrade(t)
		flows(fmt.Sprintf("after upgrade %d", i+1))
	}

	t.Run("fails", func(t *testing.T) {
		pid := d.Status(t).Pid
		for _, after := range []handover.Kind{handover.Hello, handover.Offer, handover.Ready, handover.State} {
			d.FailUpgrade(t, after, "guests", "cards", "containers")
			flows(fmt.Sprintf("after a next daemon that ended after %v", after))
		}
		if now := d.Status(t).Pid; now != pid {
			t.Errorf("the daemon was process %d, and is %d", pid, now)
		}
		d.Upgrade(t)
		flows("after one that did not fail")
	})
	t.Run("ends", func(t *testing.T) { // programs that come and go meanwhile, and check their data
		for _, argv := range [][]string{{"ibv_rc_pingpong", "-g", "0", "-n", "300", "-e", "-c"}, {"ib_send_bw", "-x", "0", "-F", "-n", "300"}} {
			s := m.verbs(t, argv...)
			m.Await(t, s, 18515)
			d.Upgrade(t)
			c := m.verbs(t, append(argv, "127.0.0.1")...)
			for n := 0; n < 2 || n < 20 && !c.Ended(0); n++ {
				d.Upgrade(t)
			}
			done(t, c)
			done(t, s)
		}
	})
	flows("in the end")
	for _, p := range endless {
		p.End()
		p.Ended(limit)
	}
	if !harness.Poll(limit, func() bool { return len(d.Status(t).Sessions) == 0 }) {
		t.Errorf("sessions are left: %q", programs(t, d))
	}
	d.Upgrade(t)
	m.pair(t, "ibv_rc_pingpong", "-g", "0", "-n", "10", "-e")
	if m.agent.Ended(0) || m.agent.Output() != agent {
		t.Errorf("the agent has noticed: %s\n%s", m.agent.Fate(), m.agent.Output())
	}
}

// pinging starts a client of rping, which checks its data, and waits until it has sent some.
func pinging(t *testing.T, m *machine, server *guest.Process) *guest.Process {
	t.Helper()
	for try := 0; ; try++ {
		c := m.verbs(t, "rping", "-c", "-a", m.ip, "-v", "-V", "-S", "100", "-C", "100000000")
		if harness.Poll(limit, func() bool { return strings.Contains(c.Output(), "ping data") || c.Ended(0) }) && !c.Ended(0) {
			return c
		}
		if server.Ended(0) || try == 50 { // refused until the server listens
			t.Fatalf("client: %s\n%s\nserver: %s\n%s", c.Fate(), c.Output(), server.Fate(), server.Output())
		}
	}
}
