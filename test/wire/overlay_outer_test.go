package wire

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

// tsharkFields returns fields of the packets in a capture that match, one packet a line.
func tsharkFields(t *testing.T, file, match string, fields ...string) []string {
	t.Helper()
	args := []string{"-r", file, "-n", "-Y", match, "-T", "fields", "-E", "separator=;", "-E", "occurrence=a", "-E", "aggregator=,"}
	for _, f := range fields {
		args = append(args, "-e", f)
	}
	out, err := exec.Command("tshark", args...).Output()
	if err != nil {
		t.Fatalf("tshark: %v", err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// TestOverlayOnly: daemons with declared NICs and without a default one are members of networks. `vrdma pcap` shows
// what members send. With --outer it shows the wire: VXLAN with the network's number between the hosts' addresses, and
// the same packets inside.
func TestOverlayOnly(t *testing.T) {
	harness.Need(t, "rping", "tshark", "ib_write_bw")
	w, nics := overlayLab(t, layout{mtu: 1500, args: []string{"--no-default-nic"}}, underlay4)
	if out, err := w.a.Command("run", "--", "ibv_devinfo").CombinedOutput(); err == nil {
		t.Errorf("there is a default NIC:\n%s", out)
	}
	dir := t.TempDir()
	inner, outer := filepath.Join(dir, "inner.pcap"), filepath.Join(dir, "outer.pcap")
	a, b := nics["red"][0], nics["red"][1]
	talk := func() {
		rping(t, a, b)
		rping(t, nics["blue"][1], nics["blue"][0])
		workload.Perf("write_bw", "-s 65536 -n 100").Run(t, a.side(), b.side(), minute)
	}
	for file, flags := range map[string][]string{inner: nil, outer: {"--outer"}} {
		capture := harness.Spawn(t, w.a.Command(append([]string{"pcap", "-w", file}, flags...)...))
		if !harness.Poll(minute, func() bool { _, err := os.Stat(file); return err == nil || capture.Ended(0) }) || capture.Ended(0) {
			t.Fatalf("no capture: %s\n%s", capture.Fate(), capture.Output())
		}
		talk()
		capture.Signal(syscall.SIGINT)
		capture.OK(t, minute)
	}
	for _, line := range tsharkFields(t, inner, "infiniband", "vxlan.vni", "ip.src") {
		if !strings.HasPrefix(line, ";10.1.0.") {
			t.Fatalf("a packet of a member is shown as %q", line)
		}
	}
	seen := map[string]int{}
	for _, line := range tsharkFields(t, outer, "infiniband", "vxlan.vni", "ip.src", "ip.dst", "udp.dstport", "_ws.malformed") {
		seen[line]++
	}
	for _, want := range []string{
		"100;10.99.0.1,10.1.0.1;10.99.0.2,10.1.0.2;4789,4791;", "100;10.99.0.2,10.1.0.2;10.99.0.1,10.1.0.1;4789,4791;",
		"101;10.99.0.1,10.1.0.1;10.99.0.2,10.1.0.2;4789,4791;", "101;10.99.0.2,10.1.0.2;10.99.0.1,10.1.0.1;4789,4791;",
	} {
		if seen[want] < 20 {
			t.Errorf("%q was seen %d times", want, seen[want])
		}
		delete(seen, want)
	}
	if len(seen) > 0 {
		t.Errorf("besides, there were %v", seen)
	}
}
