package networks

import (
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/cable"
	"vrdma.dev/vrdma/test/guest"
	"vrdma.dev/vrdma/test/harness"
)

// TestLiveMoveBesideLinux moves a NIC whose peer is a Linux machine with the kernel's vxlan and rxe, which runs nothing of vrdma. rping
// checks its data in both directions: SEND, RDMA READ and RDMA WRITE, by rxe and by the NIC that moves.
func TestLiveMoveBesideLinux(t *testing.T) {
	const linux, patience = "10.99.0.3", 3 * minute // it is emulated
	g := guest.Boot(t, guest.Config{Memory: 512, IP4: linux + "/24", MTU: 1500})
	w := newLabBeside(t, []cable.End{g.Wire}, 2, 1, func(h *host) { h.start(t) })
	w.a.declare(t, object("Host", "name: linux", "type: linux, address: "+linux)+object("Tenant", "name: red", "")+
		object("Network", "name: train, tenant: red", "vni: 100, subnets: [10.1.0.0/24]")+
		object("NIC", "name: roams, tenant: red", "network: train, address: 10.1.0.9")+
		object("NIC", "name: linux, tenant: red", `network: train, address: 10.1.0.7, host: linux, mac: "02:00:5e:10:00:02"`))
	for _, h := range w.hosts {
		h.ready(t, "red/roams")
	}
	r := w.rove(t, "red/roams", w.a)
	server := r.start(t, nil, "rping", "-s", "-P", "-V", "-a", "10.1.0.9")
	w.a.listens(t, "red/roams", server)

	commands := w.a.must(t, "network", "show", "red/train", "--linux")
	t.Logf("$ vrdma network show red/train --linux\n%s", commands)
	g.Run(t, patience, "rdma", "link", "delete", "rxe0")
	for line := range strings.Lines(commands) {
		if argv := strings.Fields(line); len(argv) > 0 && argv[0] != "#" {
			g.Run(t, patience, argv...)
		}
	}
	theirs := g.Launch(t, "rping", "-c", "-V", "-v", "-a", "10.1.0.9")
	g.Launch(t, "rping", "-s", "-P", "-V", "-a", "10.1.0.7", "-p", "7999")
	var ours *harness.Process
	if !harness.Poll(patience, func() bool { // until that listens
		ours = r.start(t, nil, "stdbuf", "-oL", "rping", "-c", "-V", "-v", "-a", "10.1.0.7", "-p", "7999")
		return harness.Poll(minute, func() bool { return ours.Ended(0) || strings.Contains(ours.Output(), "ping data") }) && !ours.Ended(0)
	}) {
		t.Fatalf("rping to the Linux machine: %s\n%s", ours.Fate(), ours.Output())
	}
	check := func() {
		t.Helper()
		grows(t, ours, 1024)
		before := len(theirs.Output())
		if !harness.Poll(patience, func() bool { return len(theirs.Output()) > before+1024 || theirs.Ended(0) }) || theirs.Ended(0) {
			t.Fatalf("rping on the Linux machine does not go on: %s\n%s", theirs.Fate(), harness.Tail(theirs.Output(), 10))
		}
		if server.Ended(0) {
			t.Fatalf("the server: %s\n%s", server.Fate(), server.Output())
		}
	}
	r.moves(t, check)
}
