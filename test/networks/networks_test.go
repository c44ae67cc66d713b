package networks

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/test/harness"
)

// serve starts rping's server at an address of a NIC.
func (h *host) serve(t testing.TB, nic, ip string, flags ...string) *harness.Process {
	t.Helper()
	p := h.program(t, nic, append([]string{"rping", "-s", "-a", ip, "-v"}, flags...)...)
	h.listens(t, nic, p)
	return p
}

// nicSocket is the socket of a NIC.
func (h *host) nicSocket(nic string) string {
	return filepath.Join(h.Socket+".nics", nic, "nic", "vrdma.sock")
}

// opens waits until a program has a queue pair of a NIC.
func (h *host) opens(t testing.TB, nic string, p *harness.Process) {
	t.Helper()
	at := harness.At(h.nicSocket(nic), nil)
	if !harness.Poll(minute, func() bool {
		return p.Ended(0) || slices.ContainsFunc(at.Status(t).Sessions, func(s protocol.SessionStatus) bool { return s.Pid == p.PID() && s.Objects.QPs > 0 })
	}) || p.Ended(0) {
		t.Fatalf("%s does not open NIC %s: %s\n%s", p.Name, nic, p.Fate(), p.Output())
	}
}

// listens waits until rping listens.
func (h *host) listens(t testing.TB, nic string, p *harness.Process) {
	t.Helper()
	socket := h.nicSocket(nic)
	at := harness.At(socket, nil)
	if !harness.Poll(minute, func() bool {
		if p.Ended(0) {
			return true
		}
		if _, err := os.Stat(socket); err != nil {
			return false
		}
		for _, c := range at.Status(t).Connections {
			if c.State == "LISTEN" {
				return true
			}
		}
		return false
	}) || p.Ended(0) {
		t.Fatalf("%s does not listen: %s\n%s", p.Name, p.Fate(), p.Output())
	}
}

// TestTwoHosts: two tenants with the same addresses on two hosts. Each reaches its own NICs. A rule that changes on one
// host ends a connection at both ends, and the other tenant's connection goes on.
func TestTwoHosts(t *testing.T) {
	w := newLab(t)
	w.a.declare(t, twoTenants()+object("NIC", "name: only, tenant: blue", "network: train, address: 10.1.0.3, host: b"))
	w.a.ready(t, "red/web", "blue/web")
	w.b.ready(t, "red/db", "blue/db", "blue/only")

	for _, of := range []string{"red", "blue"} {
		server := w.b.serve(t, of+"/db", "10.1.0.2", "-C", "20")
		w.a.program(t, of+"/web", "rping", "-c", "-a", "10.1.0.2", "-C", "20", "-v").OK(t, minute)
		server.OK(t, minute)
	}
	if p := w.a.program(t, "red/web", "rping", "-c", "-a", "10.1.0.3", "-C", "1"); p.Wait(t, minute) == 0 || !strings.Contains(p.Output(), "unreachable") {
		t.Errorf("red reaches an address of blue's: %s\n%s", p.Fate(), p.Output())
	}

	out := w.a.must(t, "get", "hosts")
	for _, want := range []string{"a ", "b ", w.a.ip, w.b.ip, "ready"} {
		if !strings.Contains(out, want) {
			t.Errorf("get hosts has no %q:\n%s", want, out)
		}
	}

	t.Run("write_bw", func(t *testing.T) {
		server := w.b.program(t, "red/db", "ib_write_bw", "-R", "-s", "65536", "-n", "500")
		w.b.listens(t, "red/db", server)
		w.a.program(t, "red/web", "ib_write_bw", "-R", "-s", "65536", "-n", "500", "10.1.0.2").OK(t, minute)
		server.OK(t, minute)
	})

	t.Run("revoked", func(t *testing.T) {
		red, blue := w.b.serve(t, "red/db", "10.1.0.2"), w.b.serve(t, "blue/db", "10.1.0.2")
		redClient := w.a.program(t, "red/web", "rping", "-c", "-a", "10.1.0.2", "-v")
		blueClient := w.a.program(t, "blue/web", "rping", "-c", "-a", "10.1.0.2", "-v")
		redClient.Printed(t, "ping data", minute)
		blueClient.Printed(t, "ping data", minute)
		w.b.declare(t, object("Policy", "name: none, tenant: red", "nics: {names: [db]}, deny: [{direction: in, peer: {nic: web}}]"))
		for _, p := range []*harness.Process{redClient, red} {
			if !p.Ended(minute) {
				t.Errorf("%s goes on", p.Name)
			}
		}
		if red.Ended(0); blue.Ended(0) || blueClient.Ended(0) {
			t.Error("another tenant's connection has ended")
		}
		events := w.a.must(t, "events") + w.b.must(t, "events")
		if !strings.Contains(events, "revoked") {
			t.Errorf("no event tells of it:\n%s", events)
		}
		if p := w.a.program(t, "red/web", "rping", "-c", "-a", "10.1.0.2", "-C", "1"); p.Wait(t, minute) == 0 {
			t.Error("a new connection is made")
		}
		syscall.Kill(blueClient.PID(), syscall.SIGKILL)
		blueClient.Ended(minute)
		blue.Ended(minute)
		w.a.must(t, "delete", "policy", "red/none")
	})

	t.Run("anywhere", func(t *testing.T) {
		w.b.declare(t, object("NIC", "name: roams, tenant: red", "network: train, address: 10.1.0.9"))
		w.a.ready(t, "red/roams")
		server := w.a.serve(t, "red/roams", "10.1.0.9")
		harness.Poll(minute, func() bool { return strings.Contains(w.b.must(t, "get", "nic", "red/roams"), "elsewhere") })
		if out := w.b.program(t, "red/roams", "ibv_devinfo"); out.Wait(t, minute) == 0 || !strings.Contains(out.Output(), "host a") {
			t.Errorf("it is opened on b as well:\n%s", out.Output())
		}
		client := w.b.program(t, "red/db", "rping", "-c", "-a", "10.1.0.9", "-C", "5")
		client.OK(t, minute)
		syscall.Kill(server.PID(), syscall.SIGKILL)
		server.Ended(minute)
		if !harness.Poll(minute, func() bool { return strings.Contains(w.b.must(t, "get", "nic", "red/roams"), "ready") }) {
			t.Fatalf("it was not given up:\n%s", w.b.must(t, "get", "nic", "red/roams"))
		}
		server = w.b.serve(t, "red/roams", "10.1.0.9", "-C", "5")
		if !harness.Poll(minute, func() bool {
			return strings.Contains(w.a.must(t, "get", "nic", "red/roams", "-o", "json"), `"host": "b"`)
		}) {
			t.Errorf("a does not know that it has moved:\n%s", w.a.must(t, "get", "nic", "red/roams", "-o", "json"))
		}
		w.a.program(t, "red/web", "rping", "-c", "-a", "10.1.0.9", "-C", "5").OK(t, minute)
		server.OK(t, minute)
	})
}

// TestHostDies: a daemon is killed. Connections to its programs end as with a dead host, others are not disturbed, and
// after the restart it has its NICs again.
func TestHostDies(t *testing.T) {
	w := newLab(t)
	w.a.declare(t, twoTenants()+object("NIC", "name: other, tenant: blue", "network: train, address: 10.1.0.3, host: a"))
	w.a.ready(t, "red/web", "blue/web", "blue/other")
	w.b.ready(t, "red/db")
	server := w.b.serve(t, "red/db", "10.1.0.2")
	client := w.a.program(t, "red/web", "rping", "-c", "-a", "10.1.0.2", "-v")
	client.Printed(t, "ping data", minute)
	local := w.a.serve(t, "blue/other", "10.1.0.3")
	unaffected := w.a.program(t, "blue/web", "rping", "-c", "-a", "10.1.0.3", "-v")
	unaffected.Printed(t, "ping data", minute)

	syscall.Kill(w.b.PID(), syscall.SIGKILL)
	if !server.Ended(minute) {
		t.Errorf("the server goes on without its daemon: %s", server.Fate())
	}
	if os.Getenv("VRDMA_TEST_ALL") != "" && !client.Ended(5*minute) { // rping's time-out is long
		t.Errorf("the connection goes on: %s", client.Fate())
	}
	if out := w.a.must(t, "get", "nic", "red/db"); !strings.Contains(out, "b ") {
		t.Errorf("its NIC is not on b any more:\n%s", out)
	}
	w.b.restart(t)
	w.b.ready(t, "red/db")
	again := w.b.serve(t, "red/db", "10.1.0.2", "-C", "5")
	w.a.program(t, "red/web", "rping", "-c", "-a", "10.1.0.2", "-C", "5").OK(t, minute)
	again.OK(t, minute)
	if local.Ended(0) || unaffected.Ended(0) {
		t.Error("others have noticed")
	}
}
