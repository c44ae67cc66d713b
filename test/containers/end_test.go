package containers

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/harness"
)

// A program that survives its deleted container loses the NIC and cannot open it again. It is still in the container's
// network namespace and sees its files, but has left its process namespace and control group.
func TestLeftOver(t *testing.T) {
	h := newHost(t, "bookworm")
	h.serve(t)
	h.apply(t, tenants)
	h.stay(t, "a", container{"bookworm", "red.web", nil})
	pid := strings.TrimSpace(h.run(t, "podman", "inspect", "-f", "{{.State.Pid}}", "a"))
	left := func(program ...string) *harness.Process {
		return h.start(t, append([]string{"nsenter", "-t", pid, "--mount", "--net"}, program...)...)
	}
	watch, loop := left("ibv_asyncwatch"), left("sh", "-c", "while :; do ibv_devinfo; sleep 0.1; done")
	watch.Printed(t, "async event FD", minute)
	loop.Printed(t, "PORT_ACTIVE", minute)
	id := h.id(t, "a")
	h.run(t, "podman", "rm", "-f", "-t", "0", "a")
	watch.Printed(t, "IBV_EVENT_DEVICE_FATAL", minute)
	loop.Printed(t, "NIC red/web is busy: it is not for what is left of container "+id, minute)
	if out := h.run(t, container{"bookworm", "red.web", nil}.argv("ibv_devinfo")...); !strings.Contains(out, "PORT_ACTIVE") {
		t.Errorf("another container, after the first was deleted:\n%s", out)
	}
}

// A changed rule applies to containers that are already connected.
func TestPolicyChanges(t *testing.T) {
	h := newHost(t, "bookworm")
	h.serve(t)
	h.apply(t, ownNetwork)
	h.stay(t, "a", container{"bookworm", "red.a", bridged("10.88.0.10")})
	h.stay(t, "b", container{"bookworm", "red.b", bridged("10.88.0.11")})
	s := h.exec(t, "a", "rping", "-s", "-P", "-a", "10.88.0.10")
	h.listening(t, s, "10.88.0.10:7174")
	c := h.exec(t, "b", "stdbuf", "-oL", "rping", "-c", "-v", "-a", "10.88.0.10") // otherwise the first line is printed with the fiftieth, minutes later on one busy processor
	c.Printed(t, "ping data", minute)
	h.apply(t, `{apiVersion: vrdma.io/v1, kind: Policy, metadata: {name: closed, tenant: red}, spec: {nics: {names: [a]}, deny: [{peer: {prefix: 10.88.0.11/32}}]}}`)
	c.Wait(t, minute)
	if p := h.exec(t, "b", "rping", "-c", "-C", "3", "-a", "10.88.0.10"); p.Wait(t, minute) == 0 {
		t.Errorf("a connection that the rules do not allow:\n%s", p.Output())
	}
	h.run(t, "vrdma", "delete", "policy", "red/closed")
	h.exec(t, "b", "rping", "-c", "-C", "3", "-a", "10.88.0.10").OK(t, minute)

	// A policy selects NICs by labels. When a NIC's labels change, the policy applies at once.
	label := func(role string) {
		t.Helper()
		h.apply(t, fmt.Sprintf("{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: b, tenant: red, labels: {role: %s}}, spec: {network: pods}}", role))
	}
	label("worker")
	h.apply(t, `{apiVersion: vrdma.io/v1, kind: Policy, metadata: {name: alone, tenant: red}, spec: {nics: {labels: {role: lonely}}, deny: [{peer: {prefix: 10.88.0.0/16}}]}}`)
	c = h.exec(t, "b", "stdbuf", "-oL", "rping", "-c", "-v", "-a", "10.88.0.10")
	c.Printed(t, "ping data", minute)
	label("lonely")
	c.Wait(t, minute)
	if p := h.exec(t, "b", "rping", "-c", "-C", "3", "-a", "10.88.0.10"); p.Wait(t, minute) == 0 {
		t.Errorf("a NIC with another label has a connection that the rules do not allow:\n%s", p.Output())
	}
	label("worker")
	h.exec(t, "b", "rping", "-c", "-C", "3", "-a", "10.88.0.10").OK(t, minute)
}

// A paused container keeps its NIC and blocks no other container. A container that the OOM killer ended, or that was
// restarted, does no harm.
func TestEnds(t *testing.T) {
	if !harness.All() {
		t.Skip("long form: make test-all")
	}
	group := controlGroup(t)
	h := newHost(t, "bookworm")
	h.serve(t)
	h.apply(t, ownNetwork)
	grouped := func(ip string, more ...string) []string {
		return append(append(bridged(ip), "--cgroups", "enabled", "--cgroup-parent", group), more...)
	}
	h.stay(t, "a", container{"bookworm", "red.a", grouped("10.88.0.10")})
	h.stay(t, "b", container{"bookworm", "red.b", bridged("10.88.0.11")})
	s := h.exec(t, "a", "rping", "-s", "-P", "-a", "10.88.0.10")
	h.listening(t, s, "10.88.0.10:7174")
	c := h.exec(t, "b", "stdbuf", "-oL", "rping", "-c", "-v", "-a", "10.88.0.10")
	c.Printed(t, "ping data", minute)
	t.Cleanup(func() { h.start(t, "podman", "unpause", "a").Wait(t, minute) }) // a frozen process does not even die
	h.run(t, "podman", "pause", "a")
	if p := h.start(t, container{"bookworm", "red.a", bridged("10.88.0.12")}.argv("ibv_devinfo")...); p.Wait(t, minute) == 0 || !strings.Contains(p.Output(), "bound to container "+h.id(t, "a")) {
		t.Errorf("another container, while the first is paused:\n%s", p.Output())
	}
	ping(t, h, h, "b", "b", "127.0.0.1")
	before := len(c.Output())
	h.run(t, "podman", "unpause", "a")
	if !harness.Poll(minute, func() bool { return len(c.Output()) > before || c.Ended(0) }) || c.Ended(0) {
		t.Errorf("the client does not go on when the server does:\n%s", harness.Tail(c.Output(), 5))
	}
	h.run(t, "podman", "restart", "-t", "0", "a")
	c.Wait(t, minute)
	ping(t, h, h, "a", "b", "10.88.0.10")
	h.run(t, "podman", "kill", "a")
	// The container is not charged for the daemon's memory. A program that has a NIC open is killed like any other.
	p := h.start(t, container{"bookworm", "red.a", grouped("10.88.0.12", "--memory", "32m", "--memory-swap", "32m")}.argv("sh", "-c", "ibv_asyncwatch & sleep 1; exec tail /dev/zero")...)
	if code := p.Wait(t, minute); code != 137 {
		t.Errorf("a container without memory ends with %d:\n%s", code, p.Output())
	}
	if out := h.run(t, container{"bookworm", "red.a", bridged("10.88.0.13")}.argv("ibv_devinfo")...); !strings.Contains(out, "PORT_ACTIVE") {
		t.Errorf("the next container:\n%s", out)
	}
}

// The OOM killer ends a container that has the NIC open, and the next container gets the NIC.
func TestOutOfMemory(t *testing.T) {
	group := controlGroup(t)
	h := newHost(t, "bookworm")
	h.serve(t)
	h.apply(t, tenants)
	flags := []string{"-d", "--name", "a", "--cgroups", "enabled", "--cgroup-parent", group, "--memory", "128m", "--memory-swap", "128m"}
	argv := container{"bookworm", "red.web", flags}.argv("sh", "-c", "mkfifo /tmp/go && read go </tmp/go; exec tail /dev/zero")
	h.run(t, slices.DeleteFunc(argv, func(s string) bool { return s == "--rm" })...)
	watch := h.exec(t, "a", "ibv_asyncwatch")
	watch.Printed(t, "async event FD", minute)
	h.exec(t, "a", "sh", "-c", "until [ -p /tmp/go ]; do sleep 0.1; done; echo >/tmp/go").Wait(t, minute) // the OOM killer may end it with the rest
	if code := strings.TrimSpace(h.run(t, "podman", "wait", "a")); code != "137" {
		t.Errorf("a container without memory ends with %s:\n%s", code, h.run(t, "podman", "inspect", "-f", "{{.State}}", "a"))
	}
	watch.Wait(t, minute)
	if out := h.run(t, container{"bookworm", "red.web", nil}.argv("ibv_devinfo")...); !strings.Contains(out, "PORT_ACTIVE") {
		t.Errorf("the next container:\n%s", out)
	}
}

// Many containers start at once, each with a NIC and a network of its own.
func TestMany(t *testing.T) {
	pairs := harness.Pick(2, 25)
	h := newHost(t, "bookworm")
	h.serve(t)
	text := ownNetwork
	for i := range 2 * pairs {
		text += fmt.Sprintf("---\n{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: c%d, tenant: red}, spec: {network: pods}}\n", i)
	}
	h.apply(t, text)
	run := func(i int, program ...string) *harness.Process {
		return h.start(t, container{"bookworm", fmt.Sprintf("red.c%d", i), bridged(fmt.Sprintf("10.88.1.%d", i+1))}.argv(program...)...)
	}
	long := 5 * time.Minute // fifty engines start at once
	var all []*harness.Process
	address := func(i int) string { return fmt.Sprintf("10.88.1.%d", i+1) }
	for i := range pairs {
		all = append(all, run(i, "rping", "-s", "-a", address(i), "-C", "20", "-V"))
	}
	for i, p := range all {
		h.listening(t, p, address(i)+":7174")
	}
	for i := range pairs {
		all = append(all, run(pairs+i, "rping", "-c", "-a", address(i), "-C", "20", "-V"))
	}
	for _, p := range all {
		p.OK(t, long)
	}
}
