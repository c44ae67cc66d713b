package wire

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"vrdma/test/harness"
)

// Somebody on another host knows a declared NIC's address, and numbers, keys and addresses of a
// program there. The daemon has the NIC in a network of its own: packets to the host's address
// reach the daemon and nobody behind it, and those to the NIC's address reach nobody, also where
// the machine has that address itself. Nor is there a socket that takes what comes with a VNI.
func TestDeclaredNICFromTheWire(t *testing.T) {
	w := newWire(t, layout{mtu: 1500})
	w.a.start(t, "--store", filepath.Join(harness.Directory(t, nil), "store"))
	w.b.start(t)
	apply := w.a.Command("apply", "-f", filepath.Join(harness.Root(), "examples", "two-tenants.yaml"))
	if out, err := apply.CombinedOutput(); err != nil {
		t.Fatalf("apply: %v\n%s", err, out)
	}
	w.a.space.Address(t, "eth0", "10.1.0.1/32")
	w.b.space.IP(t, "route", "add", "10.1.0.0/24", "via", w.a.ip4)

	program := harness.Compile(t, "cross")
	cmd := w.a.Command("run", "--nic", "red/web", "--", program, "target")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	target := harness.Spawn(t, cmd)
	target.Printed(t, "target ", minute)
	f := strings.Fields(regexp.MustCompile(`target .*`).FindString(target.Output()))
	if len(f) != 5 {
		t.Fatalf("the target printed %q", f)
	}
	dropped := func() uint64 { return w.a.Status(t).Counters["rx_roce_discard_pkts"] }
	for _, address := range []string{w.a.ip4, "10.1.0.1"} {
		before := dropped()
		attack := append([]string{program, "attack"}, f[1:]...)
		w.b.Run(t, minute, append(attack, "::ffff:"+address)...)
		t.Logf("to %s: %d packets dropped", address, dropped()-before)
		if address == w.a.ip4 && dropped() == before {
			t.Errorf("no packet to %s is counted as dropped", address)
		}
	}
	in.Close()
	if out := target.OK(t, minute); !strings.Contains(out, "untouched") {
		t.Errorf("the target printed:\n%s", out)
	}
	const vxlan = ":12B5 " // 4789
	for _, file := range []string{"udp", "udp6"} {
		if strings.Contains(w.a.proc(t, file), vxlan) {
			t.Errorf("somebody takes packets of VXLAN:\n%s", w.a.proc(t, file))
		}
	}
}
