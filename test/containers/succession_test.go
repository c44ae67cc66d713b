package containers

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// serveUpgradable is serve for a daemon that upgrade replaces. Its log is a file: the next daemon writes to the same
// output after the first has ended.
func (h *host) serveUpgradable(t *testing.T, args ...string) {
	t.Helper()
	const log = "/run/daemon.log"
	h.serveBy(t, []string{"sh", "-c", `exec vrdma "$@" >>` + log + ` 2>&1`, "sh"}, args...)
	text := func() string {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/root%s", h.pid, log)) // it does not exist yet
		return string(b)
	}
	if !harness.Poll(minute, func() bool { return strings.Contains(text(), "msg=serving ") || h.daemon.Ended(0) }) || h.daemon.Ended(0) {
		t.Fatalf("the daemon does not serve:\n%s", text())
	}
	t.Cleanup(func() {
		h.run(t, "vrdma", "stop")
		if t.Failed() {
			t.Logf("log of the daemons, last part:\n%s", harness.Tail(text(), 60))
		}
	})
}

var upgraded = regexp.MustCompile(`^upgraded: pid (\d+), version .*; before: pid (\d+), version .*; programs paused for (.*)\n`)

// upgrade replaces the daemon by one of the same program.
func (h *host) upgrade(t *testing.T) {
	t.Helper()
	before := h.status(t).Pid
	out := h.run(t, "vrdma", "upgrade")
	m := upgraded.FindStringSubmatch(out)
	if m == nil || m[1] != fmt.Sprint(h.status(t).Pid) || m[2] != fmt.Sprint(before) {
		t.Fatalf("the daemon was process %d and is %d; vrdma upgrade says:\n%s", before, h.status(t).Pid, out)
	}
	t.Logf("programs paused for %s", m[3])
}

// The daemon is replaced while containers have NICs: as interfaces with TCP on them, and with the addresses of their own
// networks. Connections over sockets and over RDMA go on, the interfaces stay as they are, and afterwards NICs follow
// their containers as before. A next daemon that fails changes nothing.
func TestSuccession(t *testing.T) {
	harness.Need(t, "iperf3", "nsenter", "ip")
	h := newHost(t, "bookworm")
	h.serveUpgradable(t)
	h.apply(t, tenants)
	h.apply(t, ownNetwork)
	h.stay(t, "a", container{"bookworm", "red.web", hard})
	h.stay(t, "b", container{"bookworm", "red.db", hard})
	h.stay(t, "c", container{"bookworm", "red.a", append(bridged("10.88.0.10"), hard...)})
	h.stay(t, "d", container{"bookworm", "red.b", append(bridged("10.88.0.11"), hard...)})
	reaches(t, h, "b", "10.1.0.1")
	watch := harness.Spawn(t, h.inside(t, "a", "ip", "monitor", "link"))

	// Transfers that last from before the first upgrade until after the last one.
	var running []*harness.Process
	begin := func(server, client *harness.Process) {
		running = append(running, server, client)
	}
	seconds := harness.Pick("4", "20")
	s := harness.Spawn(t, h.inside(t, "a", "iperf3", "-s", "-1", "--forceflush"))
	s.Printed(t, "listening", minute)
	begin(s, harness.Spawn(t, h.inside(t, "b", "iperf3", "-c", "10.1.0.1", "-t", seconds, "--forceflush")))
	for _, p := range [][3]string{{"a", "b", "10.1.0.1"}, {"c", "d", "10.88.0.10"}} {
		s := h.exec(t, p[0], "rping", "-s", "-P", "-a", p[2], "-V")
		h.listening(t, s, p[2]+":7174")
		c := h.exec(t, p[1], "stdbuf", "-oL", "rping", "-c", "-v", "-V", "-a", p[2])
		c.Printed(t, "ping data", minute)
		begin(s, c)
		s = h.exec(t, p[0], "ib_write_bw", "-F", "-D", seconds, "-p", "18600")
		if !harness.Poll(minute, func() bool {
			return strings.Contains(h.exec(t, p[0], "sh", "-c", "cat /proc/net/tcp*").OK(t, minute), ":48A8 ")
		}) {
			t.Fatalf("%s does not listen: %s\n%s", s.Name, s.Fate(), s.Output())
		}
		begin(s, h.exec(t, p[1], "ib_write_bw", "-F", "-D", seconds, "-p", "18600", p[2]))
	}
	if p := h.start(t, "vrdma", "upgrade", "/bin/false"); p.Wait(t, minute) == 0 || !strings.Contains(p.Output(), "continues") {
		t.Errorf("vrdma upgrade /bin/false: exit %d\n%s", p.Code(), p.Output())
	}
	for range harness.Pick(2, 10) {
		h.upgrade(t)
	}
	for _, p := range running {
		if strings.Contains(p.Name, "rping") {
			continue
		}
		p.OK(t, minute)
	}
	for _, p := range running {
		if !strings.Contains(p.Name, "rping") {
			continue
		}
		if p.Ended(0) {
			t.Errorf("%s: %s\n%s", p.Name, p.Fate(), harness.Tail(p.Output(), 5))
		}
	}
	if out := watch.Output(); strings.Contains(out, "vrdma0") {
		t.Errorf("the interface of a container has changed:\n%s", out)
	}
	watch.End()

	// The last daemon serves the containers as the first did. A server from before accepts: rdma_cm finds the device by its
	// GUID, which has to stay the same. This host has no machine ID, from which it would follow.
	for _, p := range [][3]string{{"a", "b", "10.1.0.1"}, {"c", "d", "10.88.0.10"}} {
		h.exec(t, p[1], "rping", "-c", "-C", "5", "-V", "-a", p[2]).OK(t, minute)
	}
	h.run(t, "podman", "network", "create", "--disable-dns", "--subnet", "10.90.0.0/24", "more")
	keep := h.exec(t, "c", "ibv_asyncwatch")
	keep.Printed(t, "async event FD", minute)
	h.upgrade(t)
	h.run(t, "podman", "network", "connect", "--ip", "10.90.0.10", "more", "c")
	keep.Printed(t, "IBV_EVENT_GID_CHANGE", minute)
	keep.End()
	if !harness.All() { // TestInterface has the rest, too
		return
	}
	before := h.descriptors(t)
	h.run(t, "podman", "rm", "-f", "-t", "0", "a", "c")
	if !harness.Poll(minute, func() bool { return h.descriptors(t) < before }) {
		t.Errorf("the daemon has %d descriptors, and had %d", h.descriptors(t), before)
	}
	if out := h.run(t, container{"bookworm", "red.web", nil}.argv("ip", "address", "show", "dev", "vrdma0")...); !strings.Contains(out, "10.1.0.1/24") {
		t.Errorf("the next container's interface:\n%s", out)
	}
}

// An ordinary user's daemon, which needs a helper for sockets in containers, is replaced while connections between the
// user's containers go on. A connection that is made afterwards takes new sockets in the containers' namespaces.
func TestSuccessionRootless(t *testing.T) {
	if !harness.All() {
		t.Skip("long form: make test-all")
	}
	h := newHost(t, "bookworm")
	h.run(t, "sh", "-c", `cp -a /images/bookworm /images/alice && chown -R 1000:1000 /images/alice && touch /etc/resolv.conf
		printf '[network]\ndefault_rootless_network_cmd = "slirp4netns"\n' >>/etc/containers/containers.conf`)
	const log = "/tmp/daemon.log"
	h.startAs(t, alice, "sh", "-c", "exec vrdma daemon --addr 127.0.0.1 --usage none >"+log+" 2>&1")
	if !harness.Poll(minute, func() bool {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/root%s", h.pid, log))
		return strings.Contains(string(text), "msg=serving ")
	}) {
		t.Fatal("the daemon does not serve")
	}
	t.Cleanup(func() { h.startAs(t, alice, "vrdma", "stop").OK(t, minute) })
	apply := h.command(alice, "vrdma", "apply", "-f", "-")
	apply.Stdin = strings.NewReader(ownNetwork)
	harness.Spawn(t, apply).OK(t, minute)
	for i, nic := range []string{"a", "b"} {
		argv := strings.Join(podman("alice", []string{"--network", fmt.Sprintf("podman:ip=10.88.0.1%d", i), "$(vrdma nic args red/" + nic + ")"}, "sleep", "1000"), " ")
		h.startAs(t, alice, "sh", "-c", strings.Replace(argv, "--rm", "-d --name "+nic, 1)).OK(t, minute)
	}
	exec := func(name string, argv ...string) *harness.Process {
		return h.startAs(t, alice, append([]string{"podman", "exec", name}, argv...)...)
	}
	s := exec("a", "rping", "-s", "-P", "-a", "10.88.0.10", "-V")
	h.listeningOf(t, alice, s, "10.88.0.10:7174")
	c := exec("b", "stdbuf", "-oL", "rping", "-c", "-v", "-V", "-a", "10.88.0.10")
	c.Printed(t, "ping data", minute)
	for range 3 {
		out := h.startAs(t, alice, "vrdma", "upgrade").OK(t, minute)
		m := upgraded.FindStringSubmatch(out)
		if m == nil {
			t.Fatalf("vrdma upgrade says:\n%s", out)
		}
		t.Logf("programs paused for %s", m[3])
		before := len(c.Output())
		if !harness.Poll(minute, func() bool { return len(c.Output()) > before || c.Ended(0) }) || c.Ended(0) || s.Ended(0) {
			t.Fatalf("the connection does not go on: %s, %s\n%s", c.Fate(), s.Fate(), harness.Tail(c.Output(), 5))
		}
	}
	exec("b", "rping", "-c", "-C", "5", "-V", "-a", "10.88.0.10").OK(t, minute)
}
