package containers

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/cable"
	"vrdma.dev/vrdma/test/guest"
	"vrdma.dev/vrdma/test/harness"
)

// mixed is one network with every kind of member.
const mixed = `
{apiVersion: vrdma.io/v1, kind: Tenant, metadata: {name: red}, spec: {}}
---
{apiVersion: vrdma.io/v1, kind: Host, metadata: {name: box}, spec: {type: linux, address: 192.0.2.3}}
---
{apiVersion: vrdma.io/v1, kind: Network, metadata: {name: train, tenant: red}, spec: {vni: 77, subnets: [10.1.0.0/24], mtu: 1400}}
---
{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: guest-a, tenant: red}, spec: {network: train, address: 10.1.0.1, host: a, open: {uids: [0]}}}
---
{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: guest-b, tenant: red}, spec: {network: train, address: 10.1.0.2, host: b, open: {uids: [0]}}}
---
{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: cont-a, tenant: red}, spec: {network: train, address: 10.1.0.3, host: a}}
---
{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: cont-b, tenant: red}, spec: {network: train, address: 10.1.0.4, host: b}}
---
{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: process, tenant: red}, spec: {network: train, address: 10.1.0.5, host: a}}
---
{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: box, tenant: red}, spec: {network: train, address: 10.1.0.6, host: box}}
`

// mixedLimit is the limit for anything that involves a guest, because guests are emulated.
const mixedLimit = 3 * time.Minute

// A member of the mixed network runs programs that have its address.
type member struct {
	name, address string
	start         func(argv ...string) harness.Program
	sockets       bool // sockets have the address, too
}

// Two virtual machines with the agent, two containers, a process of a host and a machine with the kernel's rxe and vxlan, on two hosts: each reaches each
// other at its address in one virtual network, by rdma_cm and, where it has an interface, by ICMP.
func TestMixed(t *testing.T) {
	if !harness.All() {
		t.Skip("three emulated machines, two engines and an etcd: the long form has them")
	}
	linux := guest.Start(t, guest.Config{IP4: "192.0.2.3/24", IP6: "fd00:99::3/64", MTU: 1500})
	hosts := hostsWithStore(t, func(t *testing.T, hosts [2]*host) {
		ends := []cable.End{linux.Wire}
		for _, h := range hosts {
			ends = append(ends, cable.TAP(t, h.space(t), "wire", 1500))
		}
		cable.Connect(t, 1, ends...)
		for i, h := range hosts {
			h.space(t).Address(t, "wire", fmt.Sprintf("192.0.2.%d/24", i+1))
		}
	}, []string{"--guest", "red/guest-a"}, []string{"--guest", "red/guest-b"})
	a, b := hosts[0], hosts[1]
	cmd := a.command(0, "vrdma", "apply", "-f", "-")
	cmd.Stdin = strings.NewReader(mixed)
	harness.Spawn(t, cmd).OK(t, minute)
	machines, image := map[*host]*guest.Guest{}, guest.Ours(t)
	for i, h := range hosts {
		side := string(rune('a' + i))
		h.knows(t, "red.guest-"+side)
		machines[h] = h.machine(t, image, "red/guest-"+side)
		h.stay(t, "c", container{"bookworm", "red.cont-" + side, nil})
	}
	inGuest := func(g *guest.Guest) func(argv ...string) harness.Program {
		return func(argv ...string) harness.Program { return g.Launch(t, argv...) }
	}
	inMachine := func(g *guest.Guest) func(argv ...string) harness.Program {
		return func(argv ...string) harness.Program {
			if argv[0] == "rping" {
				argv = append([]string{"env", "VRDMA_SOCKET=" + socket, guest.Home + "/vrdma", "run", "-q", "--"}, argv...)
			}
			return g.Launch(t, argv...)
		}
	}
	inContainer := func(h *host) func(argv ...string) harness.Program {
		return func(argv ...string) harness.Program { return h.exec(t, "c", argv...) }
	}
	members := []member{
		{"a's guest", "10.1.0.1", inMachine(machines[a]), true}, {"b's guest", "10.1.0.2", inMachine(machines[b]), true},
		{"a's container", "10.1.0.3", inContainer(a), true}, {"b's container", "10.1.0.4", inContainer(b), true},
		{"a's process", "10.1.0.5", func(argv ...string) harness.Program {
			return a.start(t, append([]string{"vrdma", "run", "-q", "--nic", "red/process", "--"}, argv...)...)
		}, false},
		{"the Linux machine", "10.1.0.6", inGuest(linux), true},
	}
	for _, g := range []*guest.Guest{linux, machines[a], machines[b]} {
		g.AwaitStart(t)
	}
	for _, g := range machines {
		agent := g.Launch(t, guest.Home+"/vrdma", "guest", "agent", "--socket", socket)
		if !harness.Poll(mixedLimit, func() bool { return strings.Contains(agent.Output(), "the daemon answers") || agent.Ended(0) }) || agent.Ended(0) {
			t.Fatalf("no daemon answers the agent\n%s", agent.Output())
		}
	}
	p := a.start(t, "vrdma", "network", "show", "red/train", "--linux")
	p.OK(t, minute)
	linux.Run(t, mixedLimit, "rdma", "link", "delete", "rxe0")
	for line := range strings.Lines(p.Stdout()) {
		if argv := strings.Fields(line); len(argv) > 0 && argv[0] != "#" {
			linux.Run(t, mixedLimit, argv...)
		}
	}
	tries := func(f func() harness.Program) harness.Program {
		var p harness.Program
		harness.Poll(mixedLimit, func() bool {
			p = f()
			if !p.Ended(minute / 2) { // rxe of Linux 6.1 does not survive a late answer
				t.Logf("%s hangs:\n%s", p.Title(), p.Output())
				p.End()
				return false
			}
			return good(p)
		})
		return p
	}
	begin := time.Now()
	for _, to := range members {
		server := to.start("rping", "-s", "-a", to.address, "-P")
		for _, from := range members {
			if from.name == to.name {
				continue
			}
			// The client retries until its server listens.
			if p := tries(func() harness.Program { return from.start("rping", "-c", "-a", to.address, "-C", "3", "-v") }); !good(p) {
				t.Errorf("rping from %s to %s: %s\n%s\n%s", from.name, to.name, p.Fate(), p.Output(), server.Output())
			}
			t.Logf("rping from %s to %s: %v", from.name, to.name, time.Since(begin).Round(time.Second))
			if !from.sockets || !to.sockets {
				continue
			}
			if p := tries(func() harness.Program { return from.start("ping", "-c", "1", "-W", "10", to.address) }); !good(p) {
				t.Errorf("ping from %s to %s: %s\n%s", from.name, to.name, p.Fate(), p.Output())
			}
		}
		if server.Ended(0) {
			t.Errorf("the server of %s: %s\n%s", to.name, server.Fate(), server.Output())
		}
	}
}

// good reports whether a program has ended with status 0.
func good(p harness.Program) bool { return p.Ended(0) && p.Code() == 0 }

// machine starts a virtual machine with a NIC of the host's daemon and our programs. QEMU is this machine's and reaches
// the socket through /proc.
func (h *host) machine(t *testing.T, image, nic string) *guest.Guest {
	t.Helper()
	p := h.start(t, "vrdma", "guest", "args", "--tcg", "-m", "320M", nic)
	p.OK(t, minute)
	args := strings.ReplaceAll(p.Stdout(), "=/run/vrdma/", fmt.Sprintf("=/proc/%d/root/run/vrdma/", h.pid))
	return guest.Start(t, guest.Config{Card: strings.Fields(args), Initramfs: image})
}
