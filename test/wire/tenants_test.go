package wire

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// An attacker on another host knows a declared NIC's address, and the numbers, keys and addresses of a program there.
// The NIC is in its own network: packets to the host's address reach the daemon and no NIC. Packets to the NIC's
// address reach nothing, even where the machine itself has that address. No socket accepts packets with a VNI.
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

// A port is a NIC of a host, as a place where programs run. It implements harness.Machine.
type port struct {
	*host
	nic string
}

func (p port) Program(t testing.TB, argv ...string) harness.Program {
	return p.LaunchWith(t, []string{"--nic", p.nic}, argv...)
}

// Two hosts have a NIC each in networks with way host. The stock tools work between them as between default NICs, and a
// rule for a prefix denies one.
func TestHostNetwork(t *testing.T) {
	harness.Need(t, "rping", "ib_write_bw", "ib_send_lat")
	w := newWire(t, layout{mtu: 1500})
	at := func(h *host) port { return port{h, "red/web"} }
	for _, h := range []*host{w.a, w.b} {
		h.start(t, "--no-default-nic", "--store", filepath.Join(harness.Directory(t, nil), "store"))
		h.apply(t, hostWorld(h.ip4))
	}
	tcp := harness.FreePort(t)
	perftest := func(argv ...string) {
		argv = append(argv, "-d", "rxe0", "-x", "0", "-F", "-n", "1000", "-p", strconv.Itoa(tcp))
		harness.Converse(t, tcp, at(w.a), argv, at(w.b), append(argv[:len(argv):len(argv)], w.a.ip4)).OK(t, minute)
	}
	perftest("ib_write_bw", "-s", "65536")
	perftest("ib_send_lat")
	if n := w.a.frames(t); n < 1000 {
		t.Errorf("%d frames have passed the wire", n)
	}
	rping := func() (string, error) {
		server := at(w.a).Program(t, "rping", "-s", "-a", w.a.ip4, "-C", "10")
		defer server.End()
		w.a.AwaitManaged(t, server, rpingPort)
		client := at(w.b).Program(t, "rping", "-c", "-a", w.a.ip4, "-C", "10").(*harness.Process)
		if code := client.Wait(t, minute); code != 0 {
			return client.Output(), fmt.Errorf("rping ends with %d", code)
		}
		return client.Output(), nil
	}
	if out, err := rping(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	w.a.apply(t, "apiVersion: vrdma.io/v1\nkind: Policy\nmetadata: {name: no, tenant: red}\nspec: {deny: [{direction: in, peer: {prefix: "+w.b.ip4+"/32}}]}\n")
	if out, err := rping(); err == nil || !strings.Contains(out, "REJECTED") {
		t.Errorf("a peer that a rule refuses: %v\n%s", err, out)
	}
	// An address that the daemon does not serve is an error.
	w.a.apply(t, strings.ReplaceAll(hostWorld("10.99.0.77"), "name: web", "name: wrong"), "does not serve other hosts at")
}

// rpingPort is rping's own.
const rpingPort = 7174

func hostWorld(address string) string {
	return "apiVersion: vrdma.io/v1\nkind: Tenant\nmetadata: {name: red}\nspec: {}\n---\n" +
		"apiVersion: vrdma.io/v1\nkind: Network\nmetadata: {name: outside, tenant: red}\nspec: {way: host}\n---\n" +
		"apiVersion: vrdma.io/v1\nkind: NIC\nmetadata: {name: web, tenant: red}\nspec: {network: outside, address: " + address + "}\n"
}

// apply declares objects; the command prints what is wanted.
func (h *host) apply(t *testing.T, world string, want ...string) {
	t.Helper()
	cmd := h.Command("apply", "-f", "-")
	cmd.Stdin = strings.NewReader(world)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("apply: %v\n%s", err, out)
	}
	for _, text := range want {
		if !strings.Contains(string(out), text) {
			t.Errorf("apply printed %q, want %q", out, text)
		}
	}
}
