package networks

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/harness"
)

// These tests mostly wait, so they run in parallel.

// line is the line of a table that begins with a name.
func line(table, name string) string {
	for l := range strings.Lines(table) {
		if f := strings.Fields(l); len(f) > 0 && f[0] == name {
			return l
		}
	}
	return ""
}

// TestStoreAway: the store is cut off under traffic, for a minute, in the long form for ten. No data is lost, an event
// and the status say so, changes are refused, and new connections still work. When the store is back, all hosts have
// the same state.
func TestStoreAway(t *testing.T) {
	t.Parallel()
	w := newLab(t)
	// The traffic is limited, because it would keep other tests from the processors.
	w.a.declare(t, strings.Replace(twoTenants(), "address: 10.1.0.1, host: a", "address: 10.1.0.1, host: a, rate: {messages: {out: 1000}}", 1))
	w.a.ready(t, "red/web", "blue/web")
	w.b.ready(t, "red/db", "blue/db")
	server := w.b.serve(t, "red/db", "10.1.0.2", "-V")
	client := w.a.program(t, "red/web", "rping", "-c", "-a", "10.1.0.2", "-v", "-V")
	client.Printed(t, "ping data", minute)

	w.a.way.set(true)
	w.b.way.set(true)
	cut := time.Now()
	if !harness.Poll(minute, func() bool { return strings.Contains(w.a.must(t, "events"), "has not answered") }) {
		t.Errorf("no event says that the store is away:\n%s", w.a.must(t, "events"))
	}
	if out, err := w.a.apply(t, object("Tenant", "name: green", "")); err == nil || !strings.Contains(out, "has not answered") {
		t.Errorf("a change: %v\n%s", err, out)
	}
	if server.Ended(0) || client.Ended(0) {
		t.Fatal("the connection did not survive")
	}

	// A new connection between known NICs.
	blue := w.b.serve(t, "blue/db", "10.1.0.2", "-C", "5")
	w.a.program(t, "blue/web", "rping", "-c", "-a", "10.1.0.2", "-C", "5").OK(t, minute)
	blue.OK(t, minute)

	// rping checks every byte that comes back.
	for last := uint64(0); time.Since(cut) < harness.Pick(minute, 10*minute); time.Sleep(time.Second) {
		now := uint64(0)
		ended := func() bool { return server.Ended(0) || client.Ended(0) }
		if !harness.Poll(minute, func() bool { now = w.a.sent(t, "red/web"); return now != last || ended() }) || ended() {
			t.Fatalf("%v without the store: %d bytes sent, before %d; %s, %s", time.Since(cut), now, last, server.Fate(), client.Fate())
		}
		last = now
	}
	if out := w.a.must(t, "status"); !strings.Contains(out, "away: last heard of") {
		t.Errorf("the status does not say since when:\n%s", out)
	}
	back := time.Now()
	w.a.way.set(false)
	w.b.way.set(false)
	if !harness.Poll(minute, func() bool { _, err := w.a.apply(t, object("Tenant", "name: green", "")); return err == nil }) {
		t.Error("nothing can be changed though the store is back")
	}
	if !harness.Poll(minute, func() bool { return strings.Contains(w.b.must(t, "get", "tenants"), "green") }) {
		t.Error("b is not in step")
	}
	t.Logf("in step, and changed, %v after the store was back", time.Since(back))
	if server.Ended(0) || client.Ended(0) {
		t.Error("the connection did not survive")
	}
}

// TestHostGone: a host without a heartbeat is shown as gone when its lease has expired. Its NICs stay there. NICs that
// may run anywhere do not start elsewhere until the host is back or the operator deletes it.
func TestHostGone(t *testing.T) {
	t.Parallel()
	w := newLab(t)
	w.a.declare(t, twoTenants()+object("NIC", "name: roams, tenant: red", "network: train, address: 10.1.0.9"))
	w.a.ready(t, "red/web", "red/roams")
	w.b.ready(t, "red/db", "red/roams")
	w.b.serve(t, "red/roams", "10.1.0.9", "-P")
	w.a.program(t, "red/web", "rping", "-c", "-a", "10.1.0.9", "-C", "5").OK(t, minute)

	syscall.Kill(w.b.PID(), syscall.SIGKILL)
	out := ""
	if !harness.Poll(minute, func() bool {
		out = w.a.must(t, "get", "hosts")
		return strings.Contains(line(out, "b"), "gone")
	}) {
		t.Fatalf("b is not gone:\n%s", out)
	}
	if !strings.Contains(line(out, "a"), "ready") {
		t.Errorf("a is gone, too:\n%s", out)
	}
	for _, nic := range []string{"red/db", "red/roams"} {
		if out := w.a.must(t, "get", "nic", nic, "-o", "json"); !strings.Contains(out, `"host": "b"`) {
			t.Errorf("%s is not on b any more:\n%s", nic, out)
		}
	}
	if p := w.a.program(t, "red/roams", "ibv_devinfo"); p.Wait(t, minute) == 0 || !strings.Contains(p.Output(), "host b") {
		t.Errorf("a NIC of a host that is gone is opened elsewhere: %s\n%s", p.Fate(), p.Output())
	}
	w.a.must(t, "delete", "host", "b")
	if !harness.Poll(minute, func() bool { return w.a.program(t, "red/roams", "ibv_devinfo").Wait(t, minute) == 0 }) {
		t.Errorf("the host is given up, and its NIC cannot be opened elsewhere:\n%s", w.a.must(t, "get", "nic", "red/roams", "-o", "json"))
	}
	// The host still comes back, with the NIC that is pinned to it.
	w.b.restart(t)
	w.b.ready(t, "red/db")
	w.a.says(t, "ready", "get", "host", "b")
	again := w.b.serve(t, "red/db", "10.1.0.2", "-C", "5")
	w.a.program(t, "red/web", "rping", "-c", "-a", "10.1.0.2", "-C", "5").OK(t, minute)
	again.OK(t, minute)
}

// TestRestartWithoutStore: a daemon restarts while the store is away. It has its NICs, other hosts reach them, and NICs
// of the other host are not disturbed. When the store is back, the daemon follows it.
func TestRestartWithoutStore(t *testing.T) {
	t.Parallel()
	w := newLab(t)
	w.a.declare(t, twoTenants()+object("NIC", "name: other, tenant: blue", "network: train, address: 10.1.0.3, host: a"))
	w.a.ready(t, "red/web", "blue/web", "blue/other")
	w.b.ready(t, "red/db")
	local := w.a.serve(t, "blue/other", "10.1.0.3")
	unaffected := w.a.program(t, "blue/web", "rping", "-c", "-a", "10.1.0.3", "-v")
	unaffected.Printed(t, "ping data", minute)

	w.a.way.set(true)
	w.b.way.set(true)
	w.b.says(t, "away: last heard of", "status")
	w.b.Stop(t)
	w.b.restart(t)
	w.b.says(t, "away: last heard of", "status")
	w.b.ready(t, "red/db")
	server := w.b.serve(t, "red/db", "10.1.0.2", "-C", "5")
	w.a.program(t, "red/web", "rping", "-c", "-a", "10.1.0.2", "-C", "5").OK(t, minute)
	server.OK(t, minute)

	w.a.way.set(false)
	w.b.way.set(false)
	if !harness.Poll(minute, func() bool { _, err := w.a.apply(t, object("Tenant", "name: green", "")); return err == nil }) {
		t.Error("nothing can be changed though the store is back")
	}
	w.b.says(t, "green", "get", "tenants")
	if local.Ended(0) || unaffected.Ended(0) {
		t.Error("others have noticed")
	}
}
