package containers

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

// tenants are two tenants with the same addresses.
const tenants = `
{apiVersion: vrdma.io/v1, kind: Tenant, metadata: {name: red}, spec: {}}
---
{apiVersion: vrdma.io/v1, kind: Tenant, metadata: {name: blue}, spec: {}}
---
{apiVersion: vrdma.io/v1, kind: Network, metadata: {name: train, tenant: red}, spec: {subnets: [10.1.0.0/24]}}
---
{apiVersion: vrdma.io/v1, kind: Network, metadata: {name: train, tenant: blue}, spec: {subnets: [10.1.0.0/24]}}
---
{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: web, tenant: red}, spec: {network: train, address: 10.1.0.1}}
---
{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: db, tenant: red}, spec: {network: train, address: 10.1.0.2}}
---
{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: web, tenant: blue}, spec: {network: train, address: 10.1.0.1}}
---
{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: db, tenant: blue}, spec: {network: train, address: 10.1.0.2}}
`

// One flag gives a container a NIC, in each way that an engine offers.
func TestOneFlag(t *testing.T) {
	h := newHost(t, "bookworm")
	h.serve(t)
	args := strings.Fields(h.run(t, "vrdma", "nic", "args", "default"))
	for _, c := range []struct {
		name    string
		flags   []string
		program []string
	}{
		{"args", args, []string{"ibv_devices"}},
		{"device", device("default"), []string{"ibv_devices"}},
		{"hardened", append(device("default"), hard...), []string{"ibv_devices"}},
		{"user", append(device("default"), "--user", "1000"), []string{"ibv_devices"}},
		{"no_environment", device("default"), []string{"env", "-i", "/usr/bin/ibv_devices"}},
		{"setuid", append(device("default"), "--user", "1000"), []string{"setuid_devices"}},
		// The user who starts a setuid program chooses its environment, but cannot choose its daemon.
		{"setuid_environment", append(device("default"), "--user", "1000", "-e", "VRDMA_SOCKET=/tmp/mine.sock", "-e", "XDG_RUNTIME_DIR=/tmp"), []string{"setuid_devices"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if out := h.run(t, podman("bookworm", c.flags, c.program...)...); !strings.Contains(out, "rxe0") {
				t.Errorf("no device:\n%s", out)
			}
		})
	}
	t.Run("run", func(t *testing.T) {
		out := h.run(t, append([]string{"vrdma", "run", "--"}, podman("bookworm", nil, "ibv_devices")...)...)
		if !strings.Contains(out, "rxe0") {
			t.Errorf("no device:\n%s", out)
		}
	})
	t.Run("without", func(t *testing.T) {
		if p := h.start(t, podman("bookworm", nil, "ibv_devices")...); p.Wait(t, minute) == 0 {
			t.Errorf("a device without the flag:\n%s", p.Output())
		}
	})
	h.stop(t)
	if h.exists(socket) {
		t.Errorf("%s is left", socket)
	}
	// Engines still know the device, and the hook says why it cannot be had.
	p := h.start(t, podman("bookworm", device("default"), "true")...)
	if code := p.Wait(t, minute); code == 0 || !strings.Contains(p.Output(), "no vrdma daemon serves "+socket) {
		t.Errorf("a container while the daemon is stopped: exit %d\n%s", code, p.Output())
	}
	h.serve(t)
	h.run(t, podman("bookworm", device("default"), "ibv_devices")...)
}

// The daemon refuses a socket directory on a noexec file system, with the reason.
func TestNoExec(t *testing.T) {
	h := newHost(t)
	h.run(t, "sh", "-c", "mkdir /tmp/noexec && mount -t tmpfs -o noexec none /tmp/noexec")
	p := h.start(t, "vrdma", "daemon", "--socket", "/tmp/noexec/vrdma.sock", "--addr", "127.0.0.1")
	p.Printed(t, "msg=serving ", minute)
	if out := p.Output(); !strings.Contains(out, "is mounted noexec") || !strings.Contains(out, "choose another path with --socket") {
		t.Errorf("the daemon says:\n%s", out)
	}
}

// Without arguments root's daemon uses a path where programs can load the shared object, engines find its NICs, and
// root's commands find the daemon.
func TestDefaultPlace(t *testing.T) {
	h := newHost(t, "bookworm")
	h.run(t, "mount", "-o", "remount,noexec", "/run") // as Debian has it
	plain := func(argv ...string) []string {
		return append([]string{"env", "-u", "VRDMA_SOCKET", "-u", "XDG_RUNTIME_DIR"}, argv...)
	}
	d := h.start(t, plain("vrdma", "daemon", "--addr", "127.0.0.1", "--usage", "none")...)
	d.Printed(t, "msg=serving ", minute)
	if out := d.Output(); !strings.Contains(out, "socket=/var/lib/vrdma/vrdma.sock") || strings.Contains(out, "WARN") {
		t.Errorf("the daemon says:\n%s", out)
	}
	if out := h.run(t, podman("bookworm", device("default"), "ibv_devices")...); !strings.Contains(out, "rxe0") {
		t.Errorf("a container:\n%s", out)
	}
	if out := h.run(t, plain("vrdma", "run", "-q", "--", "ibv_devices")...); !strings.Contains(out, "rxe0") {
		t.Errorf("a program:\n%s", out)
	}
	h.run(t, plain("vrdma", "stop")...)
	d.OK(t, minute)
}

// A Go program with package verbs needs no library, and finds the NIC at the same path.
func TestGo(t *testing.T) {
	h := newHost(t, "bookworm")
	h.serve(t)
	h.apply(t, tenants)
	ping := filepath.Join(harness.Directory(t, nil), "ping")
	build := exec.Command("go", "build", "-o", ping, "./examples/ping")
	build.Dir, build.Env = harness.Root(), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	program, err := os.ReadFile(ping)
	if err == nil {
		err = os.WriteFile(fmt.Sprintf("/proc/%d/root/images/bookworm/usr/bin/goping", h.pid), program, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	s := h.start(t, container{"bookworm", "red.web", hard}.argv("goping", "-s", "-l", "10.1.0.1:7500")...)
	h.listening(t, s, "10.1.0.1:7500")
	h.run(t, container{"bookworm", "red.db", hard}.argv("goping", "10.1.0.1:7500")...)
	s.OK(t, minute)
}

// The check reports good images as good.
func TestCheck(t *testing.T) {
	for _, suite := range []string{"bullseye", "bookworm", "trixie"} {
		root := harness.Image(t, suite)
		out, err := exec.Command(harness.Binary(), "nic", "check", root, "ib_write_bw", "sh").CombinedOutput()
		if err != nil || len(out) > 0 {
			t.Errorf("%s: %v\n%s", suite, err, out)
		}
	}
	out, err := exec.Command(harness.Binary(), "nic", "check", t.TempDir()).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "rxe provider is not installed") {
		t.Errorf("an empty image: %v\n%s", err, out)
	}
}

// pair runs rping and perftest between two containers, over rdma_cm.
func (h *host) pair(t *testing.T, server, client container, address string) {
	t.Helper()
	for _, c := range []struct {
		name, port     string
		server, client []string
		check          func(server, client string) error
	}{
		{"rping", "7174", []string{"rping", "-s", "-a", address, "-C", "5", "-V"}, []string{"rping", "-c", "-a", address, "-C", "5", "-V"}, nil},
		{"ib_write_bw", "18515", []string{"ib_write_bw", "-R", "-F", "-n", "500"}, []string{"ib_write_bw", "-R", "-F", "-n", "500", address},
			func(server, client string) error { return workload.CheckRows(client, server, 1) }},
	} {
		at := address
		if c.check != nil {
			at = "0.0.0.0"
		}
		s := h.start(t, server.argv(c.server...)...)
		h.listening(t, s, net.JoinHostPort(at, c.port))
		said := h.run(t, client.argv(c.client...)...)
		answered := s.OK(t, minute)
		if c.check != nil {
			if err := c.check(answered, said); err != nil {
				t.Errorf("%s: %v:\n%s\n%s", c.name, err, answered, said)
			}
		}
	}
}

// A container says how to start one.
type container struct {
	image, nic string
	flags      []string
}

func (c container) argv(program ...string) []string {
	if c.nic == "" { // the flags give it its NIC
		return podman(c.image, c.flags, program...)
	}
	return podman(c.image, append(device(c.nic), c.flags...), program...)
}

// Two containers with NICs of one network, and no other rights.
func TestPair(t *testing.T) {
	h := newHost(t, "bookworm")
	h.serve(t)
	h.apply(t, tenants)
	h.pair(t, container{"bookworm", "red.web", hard}, container{"bookworm", "red.db", hard}, "10.1.0.1")
	t.Run("faults", h.faults)
	// perftest's own exchange uses the containers' network, which is podman's.
	at := func(ip string) []string { return []string{"--network", "podman:ip=" + ip} }
	t.Run("bridge", func(t *testing.T) {
		s := h.start(t, container{"bookworm", "red.web", at("10.88.0.10")}.argv("ib_send_bw", "-F", "-n", "500")...)
		var c *harness.Process
		harness.Poll(minute, func() bool {
			c = h.start(t, container{"bookworm", "red.db", at("10.88.0.11")}.argv("ib_send_bw", "-F", "-n", "500", "10.88.0.10")...)
			return c.Wait(t, minute) == 0 || s.Ended(0)
		})
		if err := workload.CheckRows(c.OK(t, minute), s.OK(t, minute), 1); err != nil {
			t.Errorf("%v\n%s", err, c.Output())
		}
	})
	t.Run("mapped", func(t *testing.T) { // root in there is an unused number outside
		h.run(t, "sh", "-c", "cp -a /images/bookworm /images/mapped && chown -R 100000:100000 /images/mapped")
		h.apply(t, strings.ReplaceAll(tenants, "network: train,", "network: train, open: {uids: [100000]},"))
		flags := append([]string{"--uidmap", "0:100000:65536", "--gidmap", "0:100000:65536"}, hard...)
		h.pair(t, container{mapped, "red.web", flags}, container{mapped, "red.db", flags}, "10.1.0.1")
	})
}

// faults: a Fault of a NIC hits its container's packets, and a container may make its own calls fail.
func (h *host) faults(t *testing.T) {
	h.run(t, "vrdma", "fault", "add", "--name", "lossy", "--nic", "red/web", "drop,packet=5")
	h.pair(t, container{"bookworm", "red.web", hard}, container{"bookworm", "red.db", hard}, "10.1.0.1")
	if out := h.run(t, "vrdma", "fault", "list"); !regexp.MustCompile(`red/lossy +\S+ +[1-9][0-9]* +drop`).MatchString(out) {
		t.Errorf("no hits:\n%s", out)
	}
	h.run(t, "vrdma", "fault", "remove", "red/lossy")
	own := container{"bookworm", "red.db", append([]string{"--env", "VRDMA_FAULT=reg-mr,message=1"}, hard...)}
	p := h.start(t, own.argv("ibv_rc_pingpong", "-g", "0")...)
	if code := p.Wait(t, minute); code == 0 || !strings.Contains(p.Output(), "register MR") {
		t.Errorf("ibv_rc_pingpong whose first region fails: exit %d\n%s", code, p.Output())
	}
}

// Images of three Debian releases: the oldest has a glibc in which dlsym finds other functions.
func TestReleases(t *testing.T) {
	h := newHost(t, "bullseye", "bookworm", "trixie")
	h.serve(t)
	h.apply(t, tenants)
	short := [][2]string{{"bullseye", "trixie"}}
	for _, c := range harness.Pick(short, append(short, [2]string{"trixie", "bullseye"}, [2]string{"bookworm", "bullseye"}, [2]string{"bookworm", "trixie"})) {
		t.Run(c[0]+"_"+c[1], func(t *testing.T) {
			h.pair(t, container{c[0], "red.web", nil}, container{c[1], "red.db", nil}, "10.1.0.1")
		})
	}
}

// Tenants with the same addresses cannot reach each other at any address, loopback included.
func TestTenantsApart(t *testing.T) {
	h := newHost(t, "bookworm")
	h.serve(t)
	both := strings.NewReplacer("subnets: [10.1.0.0/24]", `subnets: [10.1.0.0/24, "fd00:1::/64"]`,
		"address: 10.1.0.1", `addresses: [10.1.0.1, "fd00:1::1"]`, "address: 10.1.0.2", `addresses: [10.1.0.2, "fd00:1::2"]`)
	h.apply(t, both.Replace(tenants))
	s := h.start(t, container{"bookworm", "red.web", nil}.argv("rping", "-s", "-a", "::", "-P", "-V")...)
	h.listening(t, s, "[::]:7174")
	reach := func(name, address string) *harness.Process {
		p := h.exec(t, name, "rping", "-c", "-a", address, "-C", "5", "-V")
		p.Wait(t, minute)
		return p
	}
	everywhere := []string{"10.1.0.1", "fd00:1::1", "127.0.0.1", "::1"}
	for nic, addresses := range map[string][]string{"blue.db": everywhere, "blue.web": everywhere, "default": everywhere, "red.db": {"127.0.0.1", "::1"}} {
		name := strings.ReplaceAll(nic, ".", "-")
		h.stay(t, name, container{"bookworm", nic, nil})
		for _, address := range addresses {
			if p := reach(name, address); p.Code() == 0 {
				t.Errorf("%s reaches the server of red.web at %s:\n%s", nic, address, p.Output())
			}
		}
	}
	for _, address := range []string{"10.1.0.1", "fd00:1::1"} { // otherwise the refusals above prove nothing
		if p := reach("red-db", address); p.Code() != 0 {
			t.Errorf("red.db does not reach red.web at %s:\n%s", address, p.Output())
		}
	}
	if s.Ended(0) {
		t.Errorf("the server of red.web has ended:\n%s", s.Output())
	}
	// A container sees its own NIC and no other.
	out := h.run(t, append(podman("bookworm", append(device("default"), "-v", "/opt/vrdma/vrdma:/vrdma:ro"), "/vrdma", "--socket", socket), "cdi")...)
	if strings.Contains(out, "red") || !strings.Contains(out, "default") {
		t.Errorf("a container with NIC default sees:\n%s", out)
	}
}
