package containers

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

// ownNetwork is a tenant whose NICs use the network of their container.
const ownNetwork = `
{apiVersion: vrdma.io/v1, kind: Tenant, metadata: {name: red}, spec: {}}
---
{apiVersion: vrdma.io/v1, kind: Network, metadata: {name: pods, tenant: red}, spec: {way: namespace}}
---
{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: a, tenant: red}, spec: {network: pods}}
---
{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: b, tenant: red}, spec: {network: pods}}
`

// bridged are the flags of a container in podman's own network.
func bridged(ip string) []string { return []string{"--network", "podman:ip=" + ip} }

// talk runs perftest between two running containers. The two sides exchange their parameters over TCP, without the name
// of a device or a GID.
func talk(t *testing.T, on, from *host, server, client, address string) {
	t.Helper()
	s := on.exec(t, server, "ib_write_bw", "-F", "-n", "500")
	var c *harness.Process
	harness.Poll(minute, func() bool {
		c = from.exec(t, client, "ib_write_bw", "-F", "-n", "500", address)
		return c.Wait(t, minute) == 0 || s.Ended(0)
	})
	if err := workload.CheckRows(c.OK(t, minute), s.OK(t, minute), 1); err != nil {
		t.Errorf("%v\n%s", err, c.Output())
	}
}

// ping runs rping between two running containers.
func ping(t *testing.T, on, from *host, server, client, address string) {
	t.Helper()
	s := on.exec(t, server, "rping", "-s", "-a", address, "-C", "5", "-V")
	on.listening(t, s, net.JoinHostPort(address, "7174"))
	from.exec(t, client, "rping", "-c", "-a", address, "-C", "5", "-V").OK(t, minute)
	s.OK(t, minute)
}

// serves reports whether a process has RoCE's port in a container's network namespace.
func (h *host) serves(t *testing.T, container string) bool {
	t.Helper()
	return strings.Contains(h.exec(t, container, "cat", "/proc/net/udp").OK(t, minute), ":12B7 ")
}

// descriptors returns the number of the daemon's descriptors.
func (h *host) descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/root/proc/%d/fd", h.pid, h.status(t).Pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// A NIC uses the network of its container: the container's address is its RDMA address, for perftest's exchange,
// rdma_cm and verbs. Packets go through the container's interface.
func TestOwnNetwork(t *testing.T) {
	h := newHost(t, "bookworm")
	h.serve(t)
	h.apply(t, ownNetwork)
	h.stay(t, "a", container{"bookworm", "red.a", append(bridged("10.88.0.10"), hard...)})
	h.stay(t, "b", container{"bookworm", "red.b", append(bridged("10.88.0.11"), hard...)})
	before := h.descriptors(t)
	talk(t, h, h, "a", "b", "10.88.0.10")
	var bytes uint64
	for line := range strings.Lines(h.exec(t, "a", "cat", "/proc/net/dev").OK(t, minute)) {
		fmt.Sscanf(strings.TrimSpace(line), "eth0: %d", &bytes)
	}
	if bytes < 500*65536 {
		t.Errorf("%d bytes came through the container's interface", bytes)
	}
	ping(t, h, h, "a", "b", "10.88.0.10")
	ping(t, h, h, "b", "a", "10.88.0.11")
	ping(t, h, h, "a", "a", "127.0.0.1")
	if out := h.exec(t, "a", "ibv_devinfo", "-v").OK(t, minute); !strings.Contains(out, "::ffff:10.88.0.10, RoCE v2") {
		t.Errorf("the container's address is no GID:\n%s", out)
	}
	// Nothing is left in the namespaces, and the daemon keeps nothing of them.
	if !harness.Poll(minute, func() bool { return !h.serves(t, "a") && !h.serves(t, "b") }) {
		t.Error("RoCE's port is open, and nobody has the NIC")
	}
	if !harness.Poll(minute, func() bool { return h.descriptors(t) <= before }) {
		t.Errorf("the daemon has %d descriptors, and had %d", h.descriptors(t), before)
	}
}

// A NIC gets the addresses of the container that uses it. Two containers cannot use it at once, and a namespace cannot
// have two NICs.
func TestOwnNetworkFollows(t *testing.T) {
	h := newHost(t, "bookworm")
	h.serve(t)
	h.apply(t, ownNetwork)
	h.stay(t, "a", container{"bookworm", "red.a", bridged("10.88.0.10")})
	s := h.exec(t, "a", "rping", "-s", "-a", "10.88.0.10")
	h.listening(t, s, "10.88.0.10:7174")
	if !h.serves(t, "a") {
		t.Error("nobody has RoCE's port in the container")
	}
	for name, c := range map[string]struct {
		argv []string
		want string
	}{
		"another container": {container{"bookworm", "red.a", bridged("10.88.0.12")}.argv("ibv_devinfo"), " cannot start: NIC red/a is bound to container "},
		"another NIC":       {container{"bookworm", "red.b", []string{"--network", "container:a"}}.argv("ibv_devinfo"), "NIC red/b: NIC red/a has this network namespace already"},
	} {
		p := h.start(t, c.argv...)
		if code := p.Wait(t, minute); code == 0 || !strings.Contains(p.Output(), c.want) {
			t.Errorf("%s: exit %d, want %q:\n%s", name, code, c.want, p.Output())
		}
	}
	h.run(t, "podman", "kill", "a")
	out := h.run(t, container{"bookworm", "red.a", bridged("10.88.0.12")}.argv("ibv_devinfo", "-v")...)
	if !strings.Contains(out, "::ffff:10.88.0.12, RoCE v2") || strings.Contains(out, "10.88.0.10") {
		t.Errorf("the next container's GIDs:\n%s", out)
	}
	// Without a network only loopback remains.
	if out := h.run(t, container{"bookworm", "red.a", nil}.argv("ibv_devinfo", "-v")...); !strings.Contains(out, "::ffff:127.0.0.1, RoCE v2") {
		t.Errorf("a container without a network:\n%s", out)
	}
}

// join connects two hosts. They get these addresses, and routes to each other's containers.
func join(t *testing.T, hosts [2]*host) {
	t.Helper()
	ip := func(h *host, args ...string) {
		t.Helper()
		argv := append([]string{fmt.Sprintf("--net=/proc/%d/ns/net", h.pid), "ip"}, args...)
		if out, err := exec.Command("nsenter", argv...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v\n%s", args, err, out)
		}
	}
	ip(hosts[0], "link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", fmt.Sprint(hosts[1].pid))
	for i, h := range hosts {
		ip(h, "address", "add", fmt.Sprintf("192.0.2.%d/24", i+1), "dev", "wire")
		ip(h, "link", "set", "wire", "up")
		ip(h, "route", "add", fmt.Sprintf("10.%d.0.0/16", 2-i), "via", fmt.Sprintf("192.0.2.%d", 2-i))
	}
}

// When the container's address changes while it runs, the next program gets the new one.
func TestOwnNetworkChanges(t *testing.T) {
	h := newHost(t, "bookworm")
	h.serve(t)
	h.apply(t, ownNetwork)
	h.stay(t, "a", container{"bookworm", "red.a", bridged("10.88.0.10")})
	h.stay(t, "b", container{"bookworm", "red.b", bridged("10.88.0.11")})
	ping(t, h, h, "a", "b", "10.88.0.10")
	pid := strings.TrimSpace(h.run(t, "podman", "inspect", "-f", "{{.State.Pid}}", "a"))
	h.run(t, "nsenter", "-t", pid, "--net", "sh", "-c", "ip address del 10.88.0.10/16 dev eth0 && ip address add 10.88.0.30/16 dev eth0")
	if !harness.Poll(minute, func() bool { return !h.serves(t, "a") }) {
		t.Fatal("the NIC is still open")
	}
	ping(t, h, h, "a", "b", "10.88.0.30")
	ping(t, h, h, "b", "a", "10.88.0.11")
}

// The engine adds and removes networks while the container's programs have the NIC open. The programs get events, a
// listener on all addresses is reached by the new address, and connections through other addresses go on.
func TestOwnNetworkConnects(t *testing.T) {
	h := newHost(t, "bookworm")
	h.serve(t)
	h.apply(t, ownNetwork)
	h.stay(t, "a", container{"bookworm", "red.a", bridged("10.88.0.10")})
	h.stay(t, "b", container{"bookworm", "red.b", bridged("10.88.0.11")})
	h.run(t, "podman", "network", "create", "--disable-dns", "--subnet", "10.90.0.0/24", "more")
	s := h.exec(t, "a", "rping", "-s", "-P")
	h.listening(t, s, "0.0.0.0:7174")
	c := h.exec(t, "b", "stdbuf", "-oL", "rping", "-c", "-v", "-a", "10.88.0.10")
	c.Printed(t, "ping data", minute)
	watch := h.exec(t, "a", "ibv_asyncwatch")
	watch.Printed(t, "async event FD", minute)

	gids := func(name string) string { return h.exec(t, name, "ibv_devinfo", "-v").OK(t, minute) }
	have := func(name, address string, want bool) {
		t.Helper()
		if !harness.Poll(minute, func() bool { return strings.Contains(gids(name), "::ffff:"+address+", RoCE v2") == want }) {
			t.Fatalf("%s has %s: %v, want %v:\n%s", name, address, !want, want, gids(name))
		}
	}
	row := func(name string, n int) string {
		return h.exec(t, name, "cat", fmt.Sprintf("/sys/class/infiniband/rxe0/ports/1/gids/%d", n)).OK(t, minute)
	}
	first := row("a", 0)
	h.run(t, "podman", "network", "connect", "--ip", "10.90.0.10", "more", "a")
	h.run(t, "podman", "network", "connect", "--ip", "10.90.0.11", "more", "b")
	watch.Printed(t, "IBV_EVENT_GID_CHANGE", minute)
	have("a", "10.90.0.10", true)
	have("b", "10.90.0.11", true)
	h.exec(t, "b", "rping", "-c", "-C", "3", "-a", "10.90.0.10").OK(t, minute)
	if now := row("a", 0); now != first {
		t.Errorf("the row of the first address has %s, and had %s", now, first)
	}
	ip := func(name string, args ...string) {
		t.Helper()
		harness.Spawn(t, h.inside(t, name, append([]string{"ip", "address"}, args...)...)).OK(t, minute)
	}
	// An IPv6 address is usable after duplicate address detection.
	ip("a", "add", "fd00:88::10/64", "dev", "eth0")
	ip("b", "add", "fd00:88::11/64", "dev", "eth0")
	for _, c := range [][2]string{{"a", "fd00:88::10"}, {"b", "fd00:88::11"}} {
		if !harness.Poll(minute, func() bool { return strings.Contains(gids(c[0]), c[1]) }) {
			t.Fatalf("%s lacks %s:\n%s", c[0], c[1], gids(c[0]))
		}
	}
	six := h.exec(t, "a", "rping", "-s", "-a", "fd00:88::10", "-p", "7200", "-C", "3")
	h.listening(t, six, "[fd00:88::10]:7200")
	h.exec(t, "b", "rping", "-c", "-a", "fd00:88::10", "-p", "7200", "-C", "3").OK(t, minute)
	six.OK(t, minute)

	h.run(t, "podman", "network", "disconnect", "more", "a")
	have("a", "10.90.0.10", false)
	if p := h.exec(t, "a", "rping", "-s", "-a", "10.90.0.10", "-p", "7300"); p.Wait(t, minute) == 0 {
		t.Errorf("a program listens at an address that the container has lost:\n%s", p.Output())
	}
	before := len(c.Output())
	if !harness.Poll(minute, func() bool { return len(c.Output()) > before || c.Ended(0) }) || c.Ended(0) {
		t.Errorf("who talks by an address that stays does not go on: %s\n%s", c.Fate(), harness.Tail(c.Output(), 5))
	}
	if watch.Ended(0) || s.Ended(0) {
		t.Errorf("a program has ended: %s, %s", watch.Fate(), s.Fate())
	}
}

// Containers of two hosts, with routed networks and nothing else between them.
func TestOwnNetworkHosts(t *testing.T) {
	if !harness.All() {
		t.Skip("long form: make test-all")
	}
	hosts := [2]*host{newHost(t, "bookworm"), newHost(t, "bookworm")}
	join(t, hosts)
	for i, h := range hosts {
		h.serve(t)
		h.apply(t, ownNetwork)
		h.run(t, "podman", "network", "create", "--disable-dns", "--subnet", fmt.Sprintf("10.%d.0.0/24", i+1), "pods")
		h.stay(t, "c", container{"bookworm", "red.a", []string{"--network", fmt.Sprintf("pods:ip=10.%d.0.10", i+1)}})
		// Routed networks need no source NAT.
		h.run(t, "nft", "insert rule inet netavark POSTROUTING ip daddr 10.0.0.0/8 accept")
	}
	talk(t, hosts[0], hosts[1], "c", "c", "10.1.0.10")
	ping(t, hosts[0], hosts[1], "c", "c", "10.1.0.10")
	ping(t, hosts[1], hosts[0], "c", "c", "10.2.0.10")
}

// An ordinary user's daemon enters that user's containers through their user namespace.
func TestOwnNetworkRootless(t *testing.T) {
	if !harness.All() {
		t.Skip("long form: make test-all")
	}
	h := newHost(t, "bookworm")
	h.run(t, "sh", "-c", `cp -a /images/bookworm /images/alice && chown -R 1000:1000 /images/alice && touch /etc/resolv.conf
		printf '[network]\ndefault_rootless_network_cmd = "slirp4netns"\n' >>/etc/containers/containers.conf`)
	d := h.startAs(t, alice, "vrdma", "daemon", "--addr", "127.0.0.1", "--usage", "none")
	d.Printed(t, "msg=serving ", minute)
	apply := h.command(alice, "vrdma", "apply", "-f", "-")
	apply.Stdin = strings.NewReader(ownNetwork)
	harness.Spawn(t, apply).OK(t, minute)
	for i, nic := range []string{"a", "b"} {
		argv := strings.Join(podman("alice", []string{"--network", fmt.Sprintf("podman:ip=10.88.0.1%d", i), "$(vrdma nic args red/" + nic + ")"}, "sleep", "1000"), " ")
		h.startAs(t, alice, "sh", "-c", strings.Replace(argv, "--rm", "-d --name "+nic, 1)).OK(t, minute)
	}
	s := h.startAs(t, alice, "podman", "exec", "a", "rping", "-s", "-a", "10.88.0.10", "-C", "5", "-V")
	h.listeningOf(t, alice, s, "10.88.0.10:7174")
	h.startAs(t, alice, "podman", "exec", "b", "rping", "-c", "-a", "10.88.0.10", "-C", "5", "-V").OK(t, 2*minute)
	s.OK(t, minute)
}

// A container that asks for a network gets a NIC there, with an allocated address, until it ends.
func TestNetworkDevice(t *testing.T) {
	h := newHost(t, "bookworm")
	h.serve(t)
	h.apply(t, tenants+"---\n{apiVersion: vrdma.io/v1, kind: Network, metadata: {name: pods, tenant: red}, spec: {way: namespace}}\n"+
		"---\n{apiVersion: vrdma.io/v1, kind: Tenant, metadata: {name: small}, spec: {quota: {nics: 1}}}\n"+
		"---\n{apiVersion: vrdma.io/v1, kind: Network, metadata: {name: n, tenant: small}, spec: {subnets: [10.3.0.0/24]}}\n")
	of := func(network string, flags ...string) container {
		return container{"bookworm", "", append([]string{"--device", "vrdma.io/network=" + network}, flags...)}
	}
	nics := func() []string {
		p := h.start(t, "vrdma", "get", "nics", "-o", "name")
		p.OK(t, minute)
		return strings.Fields(p.Stdout())
	}
	if !harness.Poll(minute, func() bool { return h.exists("/run/cdi/vrdma-red.networks.json") }) {
		t.Fatal("there is no CDI file for the networks of red")
	}
	before := nics()
	// The next container's start removes NICs that are left from before a reboot, also those that an older version
	// created. NICs of another machine stay.
	h.write(t, "/etc/machine-id", "0123456789abcdef0123456789abcdef\n")
	name := strings.TrimSpace(h.run(t, "hostname"))
	left := func(nic, machine string) string {
		return fmt.Sprintf("---\n{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: %s, tenant: red, labels: {vrdma.io/boot: \"another.1\", vrdma.io/machine: %q, vrdma.io/on-host: %q}}, spec: {network: train}}\n", nic, machine, name)
	}
	const hashed = "3e20daf9c077a956adf9295409c4200b" // of the number, as TestMachineLabel has it
	h.apply(t, left("c-left", hashed)+left("c-older", "0123456789abcdef0123456789abcdef")+left("c-other", "fedcba9876543210fedcba9876543210"))
	h.run(t, of("red.train").argv("true")...)
	if now := strings.Join(nics(), " "); strings.Contains(now, "red/c-left") || strings.Contains(now, "red/c-older") || !strings.Contains(now, "red/c-other") {
		t.Errorf("after the next container NICs are %s", now)
	}
	h.run(t, "vrdma", "delete", "nic", "red/c-other")
	h.stay(t, "a", of("red.train", hard...))
	h.stay(t, "b", of("red.train"))
	if made := nics(); len(made) != len(before)+2 || !strings.Contains(strings.Join(made, " "), "red/c-"+h.id(t, "a")) {
		t.Errorf("NICs %v, before %v", made, before)
	}
	p := h.start(t, "vrdma", "get", "nic", "red/c-"+h.id(t, "a"), "-o", "json")
	p.OK(t, minute)
	var nic struct{ Spec struct{ Addresses []string } }
	if err := json.Unmarshal([]byte(p.Stdout()), &nic); err != nil || len(nic.Spec.Addresses) != 1 {
		t.Fatalf("the NIC that was made: %v\n%s", err, p.Stdout())
	}
	ping(t, h, h, "a", "b", nic.Spec.Addresses[0])
	h.stay(t, "c", of("red.pods", bridged("10.88.0.10")...))
	h.stay(t, "d", of("red.pods", bridged("10.88.0.11")...))
	ping(t, h, h, "c", "d", "10.88.0.10")
	// A quota applies, and a visible error says so.
	h.stay(t, "e", of("small.n"))
	if p := h.start(t, of("small.n").argv("ibv_devinfo")...); p.Wait(t, minute) == 0 || !strings.Contains(p.Output(), "tenant small would have 2 NICs, and its quota is 1") {
		t.Errorf("more NICs than the quota:\n%s", p.Output())
	}
	h.run(t, "podman", "rm", "-f", "-t", "0", "a", "b", "c", "d", "e")
	if !harness.Poll(minute, func() bool { return len(nics()) == len(before) }) {
		t.Errorf("NICs are left: %v, before %v", nics(), before)
	}
}
