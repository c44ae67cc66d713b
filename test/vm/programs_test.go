package vm

import (
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// more runs more programs of rdma-core and perftest within a machine.
func more(t *testing.T, a *machine) {
	for _, argv := range [][]string{
		{"ibv_uc_pingpong", "-g", "0", "-n", "30"}, {"ibv_ud_pingpong", "-g", "0", "-n", "30"}, {"ibv_srq_pingpong", "-g", "0", "-n", "30"},
		{"ib_send_bw", "-x", "0", "-F", "-n", "50"}, {"ib_read_bw", "-x", "0", "-F", "-n", "50"}, {"ib_send_lat", "-x", "0", "-F", "-n", "50", "-e"},
		{"ib_write_lat", "-x", "0", "-F", "-n", "50"}, {"ib_read_lat", "-x", "0", "-F", "-n", "50"}, {"ib_atomic_lat", "-x", "0", "-F", "-n", "50"},
		{"ib_send_bw", "-x", "0", "-F", "-n", "50", "-c", "UD", "-s", "1024"}, {"ib_write_bw", "-x", "0", "-F", "-n", "50", "-c", "UC", "-q", "4"},
	} {
		t.Run(strings.Join(argv, "_"), func(t *testing.T) { a.pair(t, argv...) })
	}
	for _, program := range []string{"ucmatose", "udaddy"} {
		t.Run(program, func(t *testing.T) {
			server := a.verbs(t, program, "-b", a.ip)
			for try := 0; ; try++ { // refused until the server listens
				c := a.verbs(t, program, "-s", a.ip, "-b", a.ip)
				if c.Ended(limit) && c.Code() == 0 {
					break
				}
				if server.Ended(0) || try == 50 {
					t.Fatalf("client: %s\n%s\nserver: %s\n%s", c.Fate(), c.Output(), server.Fate(), server.Output())
				}
			}
			done(t, server)
		})
	}
}

// hostile runs the test suite's hostile client in a machine. It harms only itself: programs of another machine go on,
// and the daemon lives and releases everything afterwards.
func hostile(t *testing.T, d *harness.Daemon, a, b *machine) {
	bin := harness.Compile(t, "hostile")
	a.Install(t, bin)
	list := strings.Fields(a.Run(t, limit, bin, "list"))
	if len(list) == 0 {
		t.Fatal("it knows no attack")
	}
	innocent := traffic(t, d, b)
	for _, attack := range list {
		t.Run(attack, func(t *testing.T) {
			p := a.verbs(t, bin, attack)
			if !p.Ended(limit) || !strings.Contains(p.Output(), "begun") {
				t.Errorf("the attack did not begin, or does not end: %s\n%s", p.Fate(), p.Output())
			}
			if d.Process.Ended(0) {
				t.Fatalf("the daemon died of %s:\n%s", attack, harness.Tail(d.Process.Output(), 60))
			}
			if !harness.Poll(limit, func() bool { return !strings.Contains(programs(t, d), "@red-a") }) {
				t.Errorf("sessions are left: %q", programs(t, d))
			}
			for _, i := range innocent {
				if i.Ended(0) {
					t.Fatalf("%s has ended: %s\n%s", i.Title(), i.Fate(), i.Output())
				}
			}
		})
	}
	for _, i := range innocent {
		i.End()
		i.Ended(limit)
	}
	a.pair(t, "ibv_rc_pingpong", "-g", "0", "-n", "3")
}
