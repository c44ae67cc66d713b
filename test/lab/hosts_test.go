package lab

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"vrdma.dev/vrdma/examples/kv/lab"
	"vrdma.dev/vrdma/test/cable"
	"vrdma.dev/vrdma/test/harness"
)

// A host is a network namespace with a daemon.
type host struct {
	*harness.Daemon
	space *cable.Namespace
	ip    string
}

// hosts are two, with a cable between them.
func hosts(t *testing.T, faults cable.Faults) (a, b *host, wire *cable.Cable) {
	t.Helper()
	harness.Need(t, "nsenter", "ip")
	var both [2]*host
	var ends [2]cable.End
	for i := range both {
		both[i] = &host{space: cable.NewNamespace(t), ip: fmt.Sprintf("10.98.0.%d", i+1)}
		ends[i] = cable.TAP(t, both[i].space, "eth0", 1500)
		both[i].space.Address(t, "eth0", both[i].ip+"/24")
	}
	wire = cable.Connect(t, 1, ends[:]...)
	wire.SetFaults(faults)
	for _, h := range both {
		h.Daemon = harness.Start(t, harness.Options{Addr: h.ip, Network: h.space.Path()})
		h.NoLeaks(t)
	}
	return both[0], both[1], wire
}

// vrdma starts `vrdma ARGS…` on a host.
func (h *host) vrdma(t *testing.T, args ...string) *harness.Process {
	t.Helper()
	argv := append([]string{"--net=" + h.space.Path(), "--", harness.Binary(), "--socket", h.Socket}, args...)
	return harness.Spawn(t, exec.Command("nsenter", argv...))
}

// TestStoreBetweenHosts: READs of several packets run beside writers, over a cable that drops and reorders packets. The
// clients check every value.
func TestStoreBetweenHosts(t *testing.T) {
	a, b, wire := hosts(t, cable.Faults{Drop: 0.003, Reorder: 0.02})
	const port = "7471"
	server := a.vrdma(t, "lab", "serve", "--listen", a.ip+":"+port, "--keys", "4", "--max-value", "8192")
	server.Printed(t, "serving at", minute)
	n := harness.Pick(120, 20_000)
	client := b.vrdma(t, "lab", "--server", a.ip+":"+port, "--keys", "4", "--values", "8192", "--mixes", "A,C", "--clients", "3", "--writers", "2",
		"--operations", strconv.Itoa(n), "--json")
	client.OK(t, 2*minute)
	var rows []lab.Row
	if err := json.Unmarshal([]byte(client.Stdout()), &rows); err != nil {
		t.Fatalf("%v:\n%s", err, client.Output())
	}
	if len(rows) != 6 {
		t.Errorf("%d rows, want 6", len(rows))
	}
	torn := uint64(0)
	for _, r := range rows {
		torn += r.Torn
	}
	t.Logf("%d torn reads were made again; the cable harmed %d frames", torn, wire.Count().Harmed())
	if wire.Count().Harmed() == 0 {
		t.Error("the cable did no harm")
	}
	server.End()
}

// TestTableBetweenHosts runs the C programs on two hosts.
func TestTableBetweenHosts(t *testing.T) {
	a, b, _ := hosts(t, cable.Faults{})
	dir := t.TempDir()
	port := harness.FreePort(t)
	s := a.Launch(t, program(t, dir, "kv_server"), "-p", strconv.Itoa(port))
	a.AwaitManaged(t, s, port)
	out := b.Run(t, minute, program(t, dir, "kv_client"), "-s", a.ip, "-p", strconv.Itoa(port), "-n", "300")
	if !strings.Contains(out, "300 one-sided reads: ") {
		t.Errorf("the client says\n%s", out)
	}
	if said := s.OK(t, minute); !strings.Contains(said, "handled 602 messages") {
		t.Errorf("the server says\n%s", said)
	}
}
