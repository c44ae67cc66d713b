package networks

import (
	"slices"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/harness"
)

// threeHosts is a NIC of red and one of blue on each of three hosts: 10.1.0.1 on a, .2 on b, .3 on c;
// and the same with IPv6.
func threeHosts() string {
	text := ""
	for i, of := range []string{"red", "blue"} {
		text += object("Tenant", "name: "+of, "") + object("Network", "name: train, tenant: "+of, "vni: "+[]string{"100", "101"}[i]+`, subnets: [10.1.0.0/24, "fd01::/64"]`)
		for _, h := range []string{"a", "b", "c"} {
			n := string(h[0] - 'a' + '1')
			text += object("NIC", "name: "+h+", tenant: "+of, `network: train, addresses: [10.1.0.`+n+`, "fd01::`+n+`"], host: `+h)
		}
	}
	return text
}

// patience is how long a program may take to receive all datagrams before they are sent again.
const patience = 15 * time.Second

// again repeats the sender until all datagrams have arrived, four times at most. Datagrams are lost where a processor
// is late, and then mckey and udaddy wait for ever.
func again(t *testing.T, send func() bool) {
	t.Helper()
	for n := 1; !send() && n < 4; n++ {
		t.Logf("not all datagrams have come within %v: they are sent again", patience)
	}
}

// TestMulticastInside: mckey in a network of three hosts. A datagram to a group reaches its members on every host. It
// does not reach members of the same group in another network, although their addresses are the same.
func TestMulticastInside(t *testing.T) {
	t.Parallel()
	harness.Need(t, "mckey", "stdbuf")
	w := newLabOf(t, 3, 1)
	w.a.declare(t, threeHosts())
	for _, h := range w.hosts {
		h.ready(t, "red/"+h.name, "blue/"+h.name)
		// The C library resolves IPv6 addresses only on hosts that have one.
		h.space.Address(t, "eth0", "fd00:99::"+string(h.name[0]-'a'+'1')+"/64")
	}
	for _, g := range []struct{ name, group, net string }{{"ipv4", "239.7.1.2", "10.1.0."}, {"ipv6", "ff0e::7:1", "fd01::"}} {
		t.Run(g.name, func(t *testing.T) {
			listen := func(h *host, of string) *harness.Process {
				p := h.program(t, of+"/"+h.name, "stdbuf", "-oL", "mckey", "-m", g.group, "-b", g.net+string(h.name[0]-'a'+'1'))
				p.Printed(t, "joined", minute)
				return p
			}
			const complete = "data transfers complete"
			deaf := listen(w.c, "blue")
			members := []*harness.Process{listen(w.b, "red"), listen(w.c, "red")}
			send := func(nic string, to ...*harness.Process) {
				t.Helper()
				again(t, func() bool {
					w.a.program(t, nic, "mckey", "-m", g.group, "-s", "-b", g.net+"1").OK(t, minute)
					return harness.Poll(patience, func() bool {
						return !slices.ContainsFunc(to, func(p *harness.Process) bool { return !p.Ended(0) })
					})
				})
			}
			send("red/a", members...)
			for _, m := range members {
				if out := m.OK(t, minute); !strings.Contains(out, complete) {
					t.Errorf("a member printed\n%s", out)
				}
			}
			if deaf.Ended(0) || strings.Contains(deaf.Output(), complete) {
				t.Errorf("a member of another network's group has heard it: %s\n%s", deaf.Fate(), deaf.Output())
			}
			// That member works: it receives from a sender of its own network, and no other member does.
			other := listen(w.b, "red")
			send("blue/a", deaf)
			if out := deaf.OK(t, minute); !strings.Contains(out, complete) {
				t.Errorf("the other network's member printed\n%s", out)
			}
			if other.Ended(0) || strings.Contains(other.Output(), complete) {
				t.Errorf("blue's datagrams were heard in red: %s\n%s", other.Fate(), other.Output())
			}
			other.End()
			other.Ended(minute)
		})
	}
	for _, h := range w.hosts {
		if c := h.Status(t).Counters; c["overlay_spoofed"]+c["overlay_not_member"]+c["overlay_stranger"] != 0 {
			t.Errorf("host %s counted %v", h.name, c)
		}
	}
}

// TestDatagramsInside: udaddy, which uses datagrams of rdma_cm, between hosts of a network, in both directions.
func TestDatagramsInside(t *testing.T) {
	harness.Need(t, "udaddy")
	w := newLab(t)
	w.a.declare(t, threeHosts())
	w.a.ready(t, "red/a")
	w.b.ready(t, "red/b")
	for _, c := range []struct {
		name     string
		from, to *host
		address  string
	}{{"there", w.a, w.b, "10.1.0.2"}, {"back", w.b, w.a, "10.1.0.1"}, {"ipv6", w.a, w.b, "fd01::2"}} {
		t.Run(c.name, func(t *testing.T) {
			var server, client *harness.Process
			again(t, func() bool {
				for _, p := range []*harness.Process{server, client} {
					if p != nil {
						p.End()
						p.Ended(minute)
					}
				}
				server = c.to.program(t, "red/"+c.to.name, "udaddy", "-b", c.address)
				c.to.listens(t, "red/"+c.to.name, server)
				client = c.from.program(t, "red/"+c.from.name, "udaddy", "-s", c.address)
				return harness.Poll(patience, func() bool { return client.Ended(0) && server.Ended(0) })
			})
			if out := client.OK(t, minute); !strings.Contains(out, "data transfers complete") {
				t.Errorf("the client printed\n%s", out)
			}
			server.OK(t, minute)
		})
	}
}
