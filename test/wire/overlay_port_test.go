package wire

import (
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// TestOverlayPortTaken: a vxlan device of the kernel has VXLAN's port, so the daemon cannot use it. Applying a network
// gives an error with the device's name; NICs of this host still reach each other. When the device is down, the daemon
// takes the port by itself. Another port also works.
func TestOverlayPortTaken(t *testing.T) {
	harness.Need(t, "nsenter", "ip", "rping")
	w := newWire(t, layout{mtu: 1500})
	name, free := takePort(t, w.a)
	for _, h := range []*host{w.a, w.b} {
		h.start(t, "--store", filepath.Join(harness.Directory(t, nil), "store"), "--underlay", h.ip4)
	}
	w.b.declare(t, networks(1, "other", w.a.ip4))
	cmd := w.a.Command("apply", "-f", "-")
	cmd.Stdin = strings.NewReader(networks(0, "other", w.b.ip4) +
		"---\napiVersion: vrdma.io/v1\nkind: NIC\nmetadata: {name: near, tenant: red}\nspec: {network: train, address: 10.1.0.9}\n")
	said, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("apply: %v\n%s", err, said)
	}
	events, err := w.a.Command("events").CombinedOutput()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"4789", w.a.ip4, "is taken", name, "--overlay-port"} {
		for where, out := range map[string]string{"apply": string(said), "the events": string(events), "the log": w.a.Process.Output()} {
			if !strings.Contains(out, want) {
				t.Errorf("%s does not say %q:\n%s", where, want, out)
			}
		}
	}
	a, b := tenantNIC{w.a, "red/n1", "10.1.0.1"}, tenantNIC{w.b, "red/n2", "10.1.0.2"}
	rping(t, tenantNIC{w.a, "red/near", "10.1.0.9"}, a)

	free()
	w.a.Process.Printed(t, "msg=overlay", minute)
	rping(t, a, b)
	rping(t, b, a)
}

// takePort makes the kernel take VXLAN's port on a host, with a device of that name. A kernel without vxlan gets a
// socket instead.
func takePort(t *testing.T, h *host) (name string, free func()) {
	t.Helper()
	const device = "vxkernel"
	var out []byte
	var err error
	h.space.Do(t, func() {
		out, err = exec.Command("ip", "link", "add", device, "type", "vxlan", "id", "77", "dstport", "4789", "local", h.ip4, "dev", "eth0").CombinedOutput()
	})
	if err == nil {
		h.space.IP(t, "link", "set", device, "up")
		return device, func() { h.space.IP(t, "link", "set", device, "down") }
	}
	t.Logf("this kernel has no vxlan (%s): a socket stands in for it", strings.TrimSpace(string(out)))
	var c net.PacketConn
	h.space.Do(t, func() { c, err = net.ListenPacket("udp4", "0.0.0.0:4789") })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return "another program", func() { c.Close() }
}
