package containers

import (
	"fmt"
	"io"
	"net"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/cable"
	"vrdma.dev/vrdma/test/etcdtest"
	"vrdma.dev/vrdma/test/harness"
)

// inside starts a program of this machine in the network namespace of a running container.
func (h *host) inside(t *testing.T, name string, argv ...string) *exec.Cmd {
	t.Helper()
	pid := strings.TrimSpace(h.run(t, "podman", "inspect", "-f", "{{.State.Pid}}", name))
	return exec.Command("nsenter", append([]string{fmt.Sprintf("--net=/proc/%d/root/proc/%s/ns/net", h.pid, pid)}, argv...)...)
}

// iperf exchanges bytes over TCP between two containers, through an address of the first.
func iperf(t *testing.T, on, from *host, server, client, address string) {
	t.Helper()
	s := harness.Spawn(t, on.inside(t, server, "iperf3", "-s", "-1", "--forceflush"))
	s.Printed(t, "listening", minute)
	harness.Spawn(t, from.inside(t, client, "iperf3", "-c", address, "-n", "20M")).OK(t, minute)
	s.OK(t, minute)
}

// reaches waits until a container gets an ICMP echo from an address.
func reaches(t *testing.T, h *host, name, address string) {
	t.Helper()
	var p *harness.Process
	if !harness.Poll(minute, func() bool {
		p = h.exec(t, name, "ping", "-c", "1", "-W", "5", address)
		return p.Wait(t, minute) == 0
	}) {
		t.Fatalf("%s does not reach %s:\n%s", name, address, p.Output())
	}
}

// address returns what `ip` prints for a container's interface; "" if there is none.
func (h *host) address(t *testing.T, name, device string) string {
	t.Helper()
	p := h.exec(t, name, "ip", "address", "show", "dev", device)
	if p.Wait(t, minute) != 0 {
		return ""
	}
	return p.Output()
}

// With way vxlan a NIC is also an interface of its container: sockets use the same address as RDMA.
func TestInterface(t *testing.T) {
	harness.Need(t, "iperf3", "nsenter", "ip", "busybox")
	h := newHost(t, "bookworm")
	h.serve(t)
	h.apply(t, tenants)
	h.stay(t, "a", container{"bookworm", "red.web", hard})
	h.stay(t, "b", container{"bookworm", "red.db", hard})
	h.stay(t, "c", container{"bookworm", "blue.db", nil})
	out := h.address(t, "a", "vrdma0")
	for _, want := range []string{"UP", "mtu 1500", "inet 10.1.0.1/24", "link/ether 02:"} {
		if !strings.Contains(out, want) {
			t.Errorf("the interface lacks %q:\n%s", want, out)
		}
	}
	// The device names its interface. A device without an interface names none, because libibverbs refuses a GID table
	// with an interface that does not exist.
	const netdev = "/sys/class/infiniband/rxe0/ports/1/gid_attrs/ndevs/0"
	if out := h.exec(t, "a", "cat", netdev).OK(t, minute); strings.TrimSpace(out) != "vrdma0" {
		t.Errorf("the device is at the interface %q", out)
	}
	if p := h.start(t, "vrdma", "run", "-q", "--nic", "blue/web", "--", "sh", "-c", "ibv_devinfo && cat "+netdev); p.Wait(t, minute) == 0 || !strings.Contains(p.Output(), "PORT_ACTIVE") {
		t.Errorf("a NIC in the host's network has an interface:\n%s", p.Output())
	}
	reaches(t, h, "b", "10.1.0.1")
	impact := h.run(t, "vrdma", "status", "--impact")
	for nic, name := range map[string]string{"red/web": "a", "red/db": "b", "blue/db": "c"} {
		if !regexp.MustCompile(`(?m)^` + nic + ` +` + h.id(t, name) + `\b`).MatchString(impact) {
			t.Errorf("a stop would hit the interface of container %s, but the status does not name it:\n%s", name, impact)
		}
	}
	talk(t, h, h, "a", "b", "10.1.0.1") // with perftest's own exchange
	if harness.All() {                  // TestPair has it, too
		ping(t, h, h, "a", "b", "10.1.0.1")
	}
	iperf(t, h, h, "a", "b", "10.1.0.1")
	for _, r := range h.usage(t).Records { // the daemon's time for it is billed
		if r.Tenant == "red" && r.Used["ethernet_ns"] == 0 {
			t.Errorf("to carry the frames of %s took no time", r.NIC)
		}
	}
	if p := h.exec(t, "c", "ping", "-c", "1", "-W", "1", "10.1.0.1"); p.Wait(t, minute) == 0 {
		t.Errorf("a container of another tenant reaches it:\n%s", p.Output())
	}

	// The interface carries only the NIC's addresses.
	harness.Spawn(t, h.inside(t, "b", "ip", "address", "add", "10.1.0.77/24", "dev", "vrdma0")).OK(t, minute)
	from := func(address string) *harness.Process {
		return harness.Spawn(t, h.inside(t, "b", "busybox", "ping", "-c", "1", "-W", "2", "-I", address, "10.1.0.1"))
	}
	// From its own address it gets an answer. Otherwise the silence above would prove nothing.
	if !harness.Poll(minute, func() bool { return from("10.1.0.2").Wait(t, minute) == 0 }) {
		t.Error("a container does not reach the other from its own address")
	}
	if p := from("10.1.0.77"); p.Wait(t, minute) == 0 || !strings.Contains(p.Output(), "100% packet loss") {
		t.Errorf("a container has an address that it was not given:\n%s", p.Output())
	}

	if harness.All() {
		t.Run("rules", func(t *testing.T) { interfaceRules(t, h) })
	}

	// The next daemon finds the container and its interface.
	h.daemon.Signal(syscall.SIGKILL)
	h.daemon.Wait(t, minute)
	h.serve(t)
	reaches(t, h, "b", "10.1.0.1")
	if out := h.exec(t, "a", "ip", "-br", "link").OK(t, minute); strings.Count(out, "vrdma") != 1 {
		t.Errorf("the interfaces after a restart:\n%s", out)
	}
	if p := h.start(t, container{"bookworm", "red.web", nil}.argv("true")...); p.Wait(t, minute) == 0 || !strings.Contains(p.Output(), "NIC red/web is bound to container "+h.id(t, "a")) {
		t.Errorf("a second container after a restart: exit %d\n%s", p.Code(), p.Output())
	}

	// The interface ends with the container or with the NIC.
	before := h.descriptors(t)
	h.run(t, "podman", "rm", "-f", "-t", "0", "a")
	if !harness.Poll(minute, func() bool { return h.descriptors(t) < before }) {
		t.Errorf("the daemon has %d descriptors, and had %d", h.descriptors(t), before)
	}
	h.run(t, "vrdma", "delete", "nic", "red/db", "--force")
	if out := h.address(t, "b", "vrdma0"); out != "" {
		t.Errorf("the NIC is deleted, and the interface is there:\n%s", out)
	}
	h.run(t, container{"bookworm", "red.web", nil}.argv("ip", "address", "show", "dev", "vrdma0")...)
}

// interfaceRules: rules for RDMA also apply to the interface: a denied service, and a cap.
func interfaceRules(t *testing.T, h *host) {
	const policy = "{apiVersion: vrdma.io/v1, kind: Policy, metadata: {name: closed, tenant: red}, spec: {nics: {names: [web]}, deny: [{direction: in, service: {space: tcp, ports: [5201]}}]}}\n"
	h.apply(t, policy)
	s := harness.Spawn(t, h.inside(t, "a", "iperf3", "-s", "--forceflush"))
	s.Printed(t, "listening", minute)
	client := func(flags ...string) *harness.Process {
		p := harness.Spawn(t, h.inside(t, "b", append([]string{"iperf3", "-c", "10.1.0.1", "--connect-timeout", "2000"}, flags...)...))
		p.Wait(t, minute)
		return p
	}
	if p := client("-n", "1M"); p.Code() == 0 {
		t.Errorf("a service that is denied answers:\n%s", p.Output())
	}
	h.run(t, "vrdma", "delete", "policy", "red/closed")
	if p := client("-n", "1M"); p.Code() != 0 {
		t.Errorf("a service that is allowed again: %s", p.Output())
	}
	h.apply(t, "{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: db, tenant: red}, spec: {network: train, address: 10.1.0.2, rate: {out: 80Mbit}}}\n")
	p := client("-t", "3", "-f", "m")
	var rate float64
	for line := range strings.Lines(p.Output()) {
		if f := strings.Fields(line); strings.Contains(line, "receiver") && len(f) > 6 {
			fmt.Sscan(f[6], &rate)
		}
	}
	if rate < 1 || rate > 100 {
		t.Errorf("%v Mbit/s, and the NIC's cap is 80:\n%s", rate, p.Output())
	}
	s.End()
}

// hostsWithStore makes two hosts with a wire between them. Their daemons share an etcd and have these arguments.
func hostsWithStore(t *testing.T, join func(*testing.T, [2]*host), args ...[]string) [2]*host {
	t.Helper()
	etcd := etcdtest.Start(t, 1)
	hosts := [2]*host{newHost(t, "bookworm"), newHost(t, "bookworm")}
	join(t, hosts)
	for i, h := range hosts {
		for _, to := range etcd.Endpoints() {
			h.forward(t, to)
		}
		for from, to := range map[string]string{etcd.CA: "/tmp/ca.pem", etcd.Certificate: "/tmp/cert.pem", etcd.Key: "/tmp/key.pem"} {
			h.bring(t, from, to)
		}
		h.write(t, "/tmp/etcd.yaml", "ca: /tmp/ca.pem\ncertificate: /tmp/cert.pem\nkey: /tmp/key.pem\n")
		h.run(t, "chmod", "600", "/tmp/etcd.yaml", "/tmp/key.pem")
		more := []string{"--store", etcd.URL(), "--store-config", "/tmp/etcd.yaml", "--host-name", string(rune('a' + i)), "--underlay", fmt.Sprintf("192.0.2.%d", i+1)}
		if i < len(args) {
			more = append(more, args[i]...)
		}
		h.serve(t, more...)
	}
	return hosts
}

// space is the host's network namespace.
func (h *host) space(t *testing.T) *cable.Namespace {
	t.Helper()
	return cable.NamespaceAt(t, fmt.Sprintf("/proc/%d/ns/net", h.pid))
}

// forward forwards connections from an address in the host to the same address of this machine.
func (h *host) forward(t *testing.T, address string) {
	t.Helper()
	var l net.Listener
	var err error
	h.space(t).Do(t, func() { l, err = net.Listen("tcp", address) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				to, err := net.Dial("tcp", address)
				if err != nil {
					return
				}
				defer to.Close()
				go func() {
					io.Copy(to, c)
					to.Close()
				}()
				io.Copy(c, to)
			}()
		}
	}()
}

// pinned are NICs of one network on two hosts: web on host a, db on host b, and any on either.
const pinned = `
{apiVersion: vrdma.io/v1, kind: Tenant, metadata: {name: red}, spec: {}}
---
{apiVersion: vrdma.io/v1, kind: Network, metadata: {name: train, tenant: red}, spec: {subnets: [10.1.0.0/24]}}
---
{apiVersion: vrdma.io/v1, kind: Network, metadata: {name: pods, tenant: red}, spec: {way: namespace}}
---
{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: pod, tenant: red}, spec: {network: pods}}
---
{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: web, tenant: red}, spec: {network: train, address: 10.1.0.1, host: a}}
---
{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: db, tenant: red}, spec: {network: train, address: 10.1.0.2, host: b}}
---
{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: any, tenant: red}, spec: {network: train, address: 10.1.0.3}}
`

// knows waits until the engines of a host know a NIC.
func (h *host) knows(t *testing.T, nic string) {
	t.Helper()
	if !harness.Poll(minute, func() bool { return strings.Contains(h.cdi(), fmt.Sprintf("%q", nic)) }) {
		t.Fatalf("no CDI file has %s:\n%s", nic, h.cdi())
	}
}

// Containers on two hosts in an encrypted network also reach each other over sockets: their frames travel through the
// tunnel. TestOverlayFramesSealed shows that a host accepts no unencrypted frame of that network.
func TestInterfaceHostsEncrypted(t *testing.T) {
	if !harness.All() {
		t.Skip("long form: make test-all")
	}
	harness.Need(t, "iperf3", "nsenter")
	hosts := hostsWithStore(t, join)
	a, b := hosts[0], hosts[1]
	cmd := a.command(0, "vrdma", "apply", "-f", "-")
	cmd.Stdin = strings.NewReader(strings.Replace(pinned, "subnets: [10.1.0.0/24]", "subnets: [10.1.0.0/24], encryption: true", 1))
	harness.Spawn(t, cmd).OK(t, minute)
	a.knows(t, "red.web")
	b.knows(t, "red.db")
	a.stay(t, "web", container{"bookworm", "red.web", nil})
	b.stay(t, "db", container{"bookworm", "red.db", nil})
	reaches(t, a, "web", "10.1.0.2")
	talk(t, b, a, "db", "web", "10.1.0.2")
	iperf(t, b, a, "db", "web", "10.1.0.2")
}

// Containers on two hosts reach each other by their NICs' addresses, over sockets and RDMA. A container that stops on
// one host and starts on another keeps its NIC.
func TestInterfaceHosts(t *testing.T) {
	if !harness.All() {
		t.Skip("long form: make test-all")
	}
	harness.Need(t, "iperf3", "nsenter")
	hosts := hostsWithStore(t, join)
	a, b := hosts[0], hosts[1]
	cmd := a.command(0, "vrdma", "apply", "-f", "-")
	cmd.Stdin = strings.NewReader(pinned)
	harness.Spawn(t, cmd).OK(t, minute)
	a.knows(t, "red.web")
	b.knows(t, "red.db")
	b.knows(t, "red.any")
	a.stay(t, "web", container{"bookworm", "red.web", nil})
	b.stay(t, "db", container{"bookworm", "red.db", nil})
	reaches(t, a, "web", "10.1.0.2")
	talk(t, b, a, "db", "web", "10.1.0.2")
	ping(t, b, a, "db", "web", "10.1.0.2")
	iperf(t, b, a, "db", "web", "10.1.0.2")
	if p := b.exec(t, "db", "ping", "-c", "1", "-W", "5", "-M", "do", "-s", "1422", "10.1.0.1"); p.Wait(t, minute) != 0 {
		t.Errorf("a packet as long as the MTU:\n%s", p.Output())
	}

	for _, c := range []struct{ nic, host, want string }{
		{"red/pod", "b", "the engine owns the address"}, {"red/db", "nowhere", "there is no host \"nowhere\": there are a, b"},
		{"red/none", "b", "there is no NIC red/none"}, {"red/db", "a", "is in use on host b: end that first, or use --force"},
	} {
		if p := a.start(t, "vrdma", "nic", "move", c.nic, c.host); p.Wait(t, minute) == 0 || !strings.Contains(p.Output(), c.want) {
			t.Errorf("vrdma nic move %s %s: exit %d\n%s, want %q", c.nic, c.host, p.Code(), p.Output(), c.want)
		}
	}

	// A NIC without a host follows its container.
	b.stay(t, "any", container{"bookworm", "red.any", nil})
	reaches(t, a, "web", "10.1.0.3")
	if p := a.start(t, container{"bookworm", "red.any", nil}.argv("true")...); p.Wait(t, minute) == 0 || !strings.Contains(p.Output(), "is on host b") {
		t.Errorf("a container of another host that has the NIC: exit %d\n%s", p.Code(), p.Output())
	}
	b.run(t, "podman", "rm", "-f", "-t", "0", "any")
	a.stay(t, "any", container{"bookworm", "red.any", nil})
	reaches(t, b, "db", "10.1.0.3")
	reaches(t, a, "web", "10.1.0.3")

	// A NIC with a host is moved by a change of its spec.
	counted := func(h *host) (n uint64) {
		fmt.Sscan(h.exec(t, "db", "cat", "/sys/class/infiniband/rxe0/ports/1/counters/port_rcv_data").OK(t, minute), &n)
		return n
	}
	if !harness.Poll(minute, func() bool { return counted(b) > 500*65536/4 }) { // perftest's counter, in words of four bytes
		t.Errorf("the device has counted %d", counted(b))
	}
	before := counted(b)
	b.run(t, "podman", "rm", "-f", "-t", "0", "db")
	var out string
	if !harness.Poll(minute, func() bool { // b releases it within a second
		p := a.start(t, "vrdma", "nic", "move", "red/db", "a")
		defer func() { out = p.Output() }()
		return p.Wait(t, minute) == 0
	}) {
		t.Fatalf("vrdma nic move: %s", out)
	}
	a.knows(t, "red.db")
	a.stay(t, "db", container{"bookworm", "red.db", nil})
	begin := time.Now()
	reaches(t, a, "web", "10.1.0.2")
	t.Logf("reached %v after its start", time.Since(begin))
	if !harness.Poll(minute, func() bool { return counted(a) >= before }) {
		t.Errorf("the device had counted %d, and on the new host it says %d", before, counted(a))
	}
	talk(t, a, a, "db", "web", "10.1.0.2")
	ping(t, a, a, "db", "web", "10.1.0.2")
}

// An ordinary user's daemon creates the interface through a helper when the container's first program opens the NIC,
// because there are no hooks. The interface lives as long as the container. Where the helper has no right to create
// one, the daemon says that only RDMA has the address.
func TestInterfaceRootless(t *testing.T) {
	if !harness.All() {
		t.Skip("long form: make test-all")
	}
	h := newHost(t, "bookworm")
	h.run(t, "sh", "-c", "cp -a /images/bookworm /images/alice && chown -R 1000:1000 /images/alice && touch /etc/resolv.conf; mkdir -p /dev/net; chmod 666 /dev/net/tun")
	d := h.startAs(t, alice, "vrdma", "daemon", "--addr", "127.0.0.1", "--usage", "none")
	d.Printed(t, "msg=serving ", minute)
	apply := h.command(alice, "vrdma", "apply", "-f", "-")
	apply.Stdin = strings.NewReader(tenants)
	harness.Spawn(t, apply).OK(t, minute)
	exec := func(name string, argv ...string) *harness.Process {
		return h.startAs(t, alice, append([]string{"podman", "exec", name}, argv...)...)
	}
	for _, nic := range []string{"web", "db"} {
		argv := strings.Join(podman("alice", []string{"$(vrdma nic args red/" + nic + ")"}, "sleep", "1000"), " ")
		h.startAs(t, alice, "sh", "-c", strings.Replace(argv, "--rm", "-d --name "+nic, 1)).OK(t, minute)
		exec(nic, "ibv_devinfo").OK(t, minute)
	}
	if out := exec("web", "ip", "address", "show", "dev", "vrdma0").OK(t, minute); !strings.Contains(out, "inet 10.1.0.1/24") || !strings.Contains(out, "LOWER_UP") {
		t.Errorf("the interface:\n%s", out)
	}
	exec("db", "ping", "-c", "1", "-W", "20", "10.1.0.1").OK(t, minute)
	s := exec("web", "ib_write_bw", "-F", "-n", "500")
	var c *harness.Process
	harness.Poll(minute, func() bool {
		c = exec("db", "ib_write_bw", "-F", "-n", "500", "10.1.0.1")
		return c.Wait(t, minute) == 0 || s.Ended(0)
	})
	c.OK(t, minute)
	s.OK(t, minute)
	// The next daemon finds the interface.
	h.startAs(t, alice, "vrdma", "stop").OK(t, minute)
	d.OK(t, minute)
	d = h.startAs(t, alice, "vrdma", "daemon", "--addr", "127.0.0.1", "--usage", "none")
	d.Printed(t, "msg=serving ", minute)
	for _, nic := range []string{"web", "db"} {
		exec(nic, "ibv_devinfo").OK(t, minute)
	}
	exec("db", "ping", "-c", "1", "-W", "20", "10.1.0.1").OK(t, minute)
	if out := exec("web", "ip", "-br", "link").OK(t, minute); strings.Count(out, "vrdma") != 1 {
		t.Errorf("the interfaces:\n%s", out)
	}
}

// Where no interface can be created, the hook and the events say that only RDMA has the address, and RDMA works.
func TestNoInterface(t *testing.T) {
	if !harness.All() {
		t.Skip("long form: make test-all")
	}
	h := newHost(t, "bookworm")
	h.run(t, "sh", "-c", "mount --bind /dev/null /dev/net/tun")
	h.serve(t)
	h.apply(t, tenants)
	h.stay(t, "a", container{"bookworm", "red.web", nil})
	h.stay(t, "b", container{"bookworm", "red.db", nil})
	ping(t, h, h, "a", "b", "10.1.0.1")
	if out := h.run(t, "vrdma", "events", "red/web"); !strings.Contains(out, "warned") || !strings.Contains(out, "only RDMA has the address") {
		t.Errorf("vrdma events:\n%s", out)
	}
}
