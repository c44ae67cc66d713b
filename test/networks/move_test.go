package networks

import (
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

// moveTo declares that red/db is on a host.
func moveTo(host string) string {
	return object("NIC", "name: db, tenant: red", "network: train, address: 10.1.0.2, host: "+host)
}

// TestMove: a NIC moves to another host while its daemons and a peer's run. A NIC in use moves only with force. It
// keeps its address, its peers learn of it within a second, and their connections end as with a dead host. In the long
// form it moves back, and again.
func TestMove(t *testing.T) {
	harness.Need(t, "ib_write_bw")
	w := newLabOf(t, 3, 1)
	w.a.declare(t, twoTenants())
	w.a.ready(t, "red/web", "blue/web")
	w.b.ready(t, "red/db", "blue/db")
	stays := w.b.serve(t, "blue/db", "10.1.0.2")
	staysToo := w.a.program(t, "blue/web", "rping", "-c", "-a", "10.1.0.2", "-v")
	staysToo.Printed(t, "ping data", minute)

	from, to := w.b, w.c
	for range harness.Pick(1, 4) {
		// The timeout is short, so that the end comes soon: 0.27 s, seven times.
		talk := workload.Perf("write_bw", "-D 120 -f 0 -s 4096 -t 16 -u 16").Start(t, from.side("red/db"), w.a.side("red/web"))
		server, client := talk.Server.(*harness.Process), talk.Client.(*harness.Process)
		w.a.sends(t, "red/web", client, 1<<20)

		if out, err := w.a.apply(t, moveTo(to.name)); err == nil || !strings.Contains(out, "in use on host "+from.name) {
			t.Fatalf("a NIC in use was moved: %v\n%s", err, out)
		}
		begin := time.Now()
		w.a.declare(t, moveTo(to.name), "--force")
		applied := time.Since(begin)
		knows := make(map[string]time.Duration)
		for _, h := range w.hosts {
			h.says(t, `"host": "`+to.name+`"`, "get", "nic", "red/db", "-o", "json")
			knows[h.name] = time.Since(begin)
		}
		t.Logf("moved from %s to %s: applied after %v, known after %v", from.name, to.name, applied, knows)
		to.ready(t, "red/db")
		t.Logf("ready on %s after %v", to.name, time.Since(begin))

		if !server.Ended(minute) {
			t.Errorf("a program goes on with a NIC that has left its host: %s", server.Fate())
		}
		if !client.Ended(minute) {
			t.Fatalf("a connection goes on without its peer: %s\n%s", client.Fate(), client.Output())
		}
		const retryExceeded = "Failed status 12"
		if !strings.Contains(client.Output(), retryExceeded) {
			t.Errorf("the peer does not say %q:\n%s", retryExceeded, client.Output())
		}
		if p := from.program(t, "red/db", "ibv_devinfo"); p.Wait(t, minute) == 0 || !strings.Contains(p.Output(), "host "+to.name) {
			t.Errorf("it can be opened where it was: %s\n%s", p.Fate(), p.Output())
		}

		again := to.serve(t, "red/db", "10.1.0.2", "-C", "5")
		w.a.program(t, "red/web", "rping", "-c", "-a", "10.1.0.2", "-C", "5").OK(t, minute)
		again.OK(t, minute)
		for name, took := range knows {
			if harness.All() && took > time.Second {
				t.Errorf("host %s knew it after %v, want a second at most", name, took)
			}
		}
		from, to = to, from
	}
	if stays.Ended(0) || staysToo.Ended(0) {
		t.Error("others have noticed")
	}
}

// sent returns how many bytes a NIC has sent.
func (h *host) sent(t testing.TB, nic string) uint64 {
	t.Helper()
	top, err := protocol.QueryTop(h.Socket)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range top.NICs {
		if s.Tenant+"/"+s.NIC == nic {
			return s.Used["transmit_bytes"]
		}
	}
	return 0
}

// sends waits until a NIC has sent more bytes.
func (h *host) sends(t testing.TB, nic string, p *harness.Process, some uint64) {
	t.Helper()
	before := h.sent(t, nic)
	if !harness.Poll(minute, func() bool { return h.sent(t, nic) > before+some || p.Ended(0) }) || p.Ended(0) {
		t.Fatalf("%s does not send: %s\n%s", nic, p.Fate(), p.Output())
	}
}
