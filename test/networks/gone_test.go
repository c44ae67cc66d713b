package networks

import (
	"strings"
	"syscall"
	"testing"

	"vrdma/test/harness"
)

// These wait more than they work: they do so side by side.

// line is the line of a table that begins with a name.
func line(table, name string) string {
	for l := range strings.Lines(table) {
		if f := strings.Fields(l); len(f) > 0 && f[0] == name {
			return l
		}
	}
	return ""
}

// TestHostGone: a host that is not heard of is shown as gone when its lease has expired. Its NICs stay
// where they are, and those that could be anywhere do not come back to life elsewhere, until it is
// back or the operator has given it up.
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
	// It comes back all the same, with the NIC that is pinned to it.
	w.b.restart(t)
	w.b.ready(t, "red/db")
	w.a.says(t, "ready", "get", "host", "b")
	again := w.b.serve(t, "red/db", "10.1.0.2", "-C", "5")
	w.a.program(t, "red/web", "rping", "-c", "-a", "10.1.0.2", "-C", "5").OK(t, minute)
	again.OK(t, minute)
}

// TestRestartWithoutStore: a daemon starts again while the store is away. It has its NICs, others reach
// them, and NICs of the other host notice nothing. When the store is back it is in step.
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
