package containers

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// cnitool copies cnitool, built from CNI's own module, into the host.
func cnitool(t *testing.T, h *host) {
	t.Helper()
	dir := harness.Directory(t, nil)
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "cnitool"), "github.com/containernetworking/cni/cnitool")
	build.Dir = harness.Root()
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build cnitool: %v\n%s", err, out)
	}
	h.bring(t, filepath.Join(dir, "cnitool"), "/tmp/cnitool")
}

// bring copies a program into the host.
func (h *host) bring(t *testing.T, from, to string) {
	t.Helper()
	if out, err := exec.Command("cp", from, fmt.Sprintf("/proc/%d/root%s", h.pid, to)).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v\n%s", err, out)
	}
}

// conflist returns the configuration of a network: Debian's ptp plugin, then ours with a NIC.
func conflist(version, name, nic string) string {
	return fmt.Sprintf(`{"cniVersion": %q, "name": %q, "plugins": [
		{"type": "ptp", "ipMasq": false, "ipam": {"type": "host-local", "subnet": "10.9.0.0/24"}},
		{"type": "vrdma-cni", "nic": %q, "socket": %q}]}`, version, name, nic, socket)
}

// cni runs cnitool for a namespace that `ip netns` created.
func (h *host) cni(t *testing.T, command, network, namespace string) *harness.Process {
	t.Helper()
	p := h.start(t, "env", "CNI_PATH=/usr/lib/cni:/opt/cni", "NETCONFPATH=/etc/cni/net.d", "/tmp/cnitool", command, network, "/run/netns/"+namespace)
	p.Wait(t, minute)
	return p
}

// CNI binds a NIC to a namespace, in every version that has a different result, through CNI's own tool.
func TestCNI(t *testing.T) {
	h := newEngineHost(t, "newer", "bookworm")
	h.serve(t)
	h.apply(t, tenants)
	cnitool(t, h)
	h.run(t, "sh", "-c", "mkdir -p /etc/cni/net.d /opt/cni && ln -s /opt/vrdma/vrdma /opt/cni/vrdma-cni && for n in a b; do ip netns add $n; done")
	inside := func(namespace string) *harness.Process {
		p := h.start(t, "ip", "netns", "exec", namespace, "vrdma", "run", "-q", "--nic", "red/web", "--", "ibv_devinfo")
		p.Wait(t, minute)
		return p
	}
	for i, version := range []string{"0.4.0", "1.0.0", "1.1.0"} {
		network := "web" + version
		h.write(t, fmt.Sprintf("/etc/cni/net.d/%d.conflist", i), conflist(version, network, "red.web"))
		if p := h.cni(t, "add", network, "a"); p.Code() != 0 || !strings.Contains(p.Stdout(), "10.9.0.") {
			t.Errorf("%s: ADD: %s", version, p.Output())
		}
		if p := h.cni(t, "check", network, "a"); p.Code() != 0 {
			t.Errorf("%s: CHECK: %s", version, p.Output())
		}
		if version == "1.1.0" {
			if p := h.cni(t, "status", network, "a"); p.Code() != 0 {
				t.Errorf("STATUS: %s", p.Output())
			}
			if p := inside("a"); p.Code() != 0 || !strings.Contains(p.Output(), "PORT_ACTIVE") {
				t.Errorf("the workload that the NIC is bound to: exit %d\n%s", p.Code(), p.Output())
			}
			if p := inside("b"); p.Code() == 0 || !strings.Contains(p.Output(), "NIC red/web is busy: it is bound to container ") {
				t.Errorf("another workload: exit %d\n%s", p.Code(), p.Output())
			}
			if p := h.cni(t, "add", network, "b"); p.Code() == 0 || !strings.Contains(p.Output(), "NIC red/web is bound to container ") {
				t.Errorf("ADD of another container: exit %d\n%s", p.Code(), p.Output())
			}
			h.cni(t, "del", network, "b")
		}
		for range 2 { // calls are repeated
			if p := h.cni(t, "del", network, "a"); p.Code() != 0 {
				t.Errorf("%s: DEL: %s", version, p.Output())
			}
		}
		if p := h.cni(t, "check", network, "a"); p.Code() == 0 {
			t.Errorf("%s: CHECK after DEL: %s", version, p.Output())
		}
	}
	if p := inside("b"); p.Code() != 0 {
		t.Errorf("another workload after DEL: %s", p.Output())
	}
	if out := h.run(t, "vrdma", "events", "red/web"); !strings.Contains(out, "bound") || !strings.Contains(out, "unbound") {
		t.Errorf("vrdma events:\n%s", out)
	}
	t.Run("lost", func(t *testing.T) { // a container ends without a DEL
		if p := h.cni(t, "add", "web1.0.0", "a"); p.Code() != 0 {
			t.Fatal(p.Output())
		}
		h.run(t, "ip", "netns", "del", "a")
		if p := h.cni(t, "add", "web1.1.0", "b"); p.Code() != 0 {
			t.Errorf("the next container: %s", p.Output())
		}
		if p := h.cni(t, "gc", "web1.1.0", "b"); p.Code() != 0 { // cnitool calls none valid
			t.Errorf("GC: %s", p.Output())
		}
		if out := h.run(t, "vrdma", "events", "red/web", "-n", "1"); !strings.Contains(out, "unbound") {
			t.Errorf("GC has left the NIC bound: %s", out)
		}
	})
	t.Run("at_once", func(t *testing.T) {
		h.run(t, "sh", "-c", "for n in 0 1 2 3 4 5; do ip netns add c$n; done")
		var wg sync.WaitGroup
		added := make([]bool, 6) // one of the waiting ones may get it
		for i := range added {
			wg.Go(func() { added[i] = h.cni(t, "add", "web1.1.0", fmt.Sprintf("c%d", i)).Code() == 0 })
		}
		wg.Wait()
		count := 0
		for i, ok := range added {
			if ok {
				count++
			}
			wg.Go(func() { h.cni(t, "del", "web1.1.0", fmt.Sprintf("c%d", i)) })
		}
		wg.Wait()
		if count != 1 {
			t.Errorf("%d containers have the NIC, want one", count)
		}
		if p := h.cni(t, "add", "web1.1.0", "c0"); p.Code() != 0 {
			t.Errorf("after all are gone: %s", p.Output())
		}
	})
	t.Run("alone", func(t *testing.T) { aloneCNI(t, h) })
	t.Run("no_daemon", func(t *testing.T) {
		h.stop(t)
		if p := h.cni(t, "status", "web1.1.0", "b"); p.Code() == 0 {
			t.Error("STATUS without a daemon is good")
		}
		if p := h.cni(t, "del", "web1.1.0", "c0"); p.Code() != 0 {
			t.Errorf("DEL without a daemon: %s", p.Output())
		}
	})
}

// aloneCNI: the plugin creates interfaces itself, with the NICs' addresses.
func aloneCNI(t *testing.T, h *host) {
	for i, nic := range []string{"web", "db"} {
		h.run(t, "ip", "netns", "add", nic)
		h.write(t, "/etc/cni/net.d/"+nic+".conflist", fmt.Sprintf(`{"cniVersion": "1.1.0", "name": %q, "plugins": [{"type": "vrdma-cni", "nic": "blue.%[1]s", "socket": %q}]}`, nic, socket))
		for range 2 { // calls are repeated
			if p := h.cni(t, "add", nic, nic); p.Code() != 0 || !strings.Contains(p.Stdout(), fmt.Sprintf("10.1.0.%d/24", i+1)) {
				t.Errorf("ADD: %s", p.Output())
			}
		}
		for _, command := range []string{"check", "status"} {
			if p := h.cni(t, command, nic, nic); p.Code() != 0 {
				t.Errorf("%s: %s", command, p.Output())
			}
		}
	}
	in := func(nic string, argv ...string) *harness.Process {
		p := h.start(t, append([]string{"ip", "netns", "exec", nic}, argv...)...)
		p.Wait(t, minute)
		return p
	}
	if p := in("web", "ping", "-c", "1", "-W", "20", "10.1.0.2"); p.Code() != 0 {
		t.Errorf("the other's address: %s", p.Output())
	}
	if out := in("web", "ip", "address", "show", "dev", "eth0").Output(); !strings.Contains(out, "inet 10.1.0.1/24") {
		t.Errorf("the interface is not called eth0:\n%s", out)
	}
	// Without the interface CHECK fails, and ADD creates it again.
	in("db", "ip", "link", "del", "eth0")
	if p := h.cni(t, "check", "db", "db"); p.Code() == 0 || !strings.Contains(p.Output(), "has no interface eth0 any more") {
		t.Errorf("CHECK of an interface that is gone: %s", p.Output())
	}
	if p := h.cni(t, "add", "db", "db"); p.Code() != 0 {
		t.Errorf("ADD of an interface that is gone: %s", p.Output())
	}
	if p := in("db", "ping", "-c", "1", "-W", "20", "10.1.0.1"); p.Code() != 0 {
		t.Errorf("the other's address: %s", p.Output())
	}
	for range 2 {
		if p := h.cni(t, "del", "db", "db"); p.Code() != 0 {
			t.Errorf("DEL: %s", p.Output())
		}
	}
	if p := in("db", "ip", "link", "show", "dev", "eth0"); p.Code() == 0 {
		t.Errorf("the interface after DEL: %s", p.Output())
	}
	if p := h.cni(t, "gc", "web", "web"); p.Code() != 0 { // cnitool calls none valid
		t.Errorf("GC: %s", p.Output())
	}
	if p := in("web", "ip", "link", "show", "dev", "eth0"); p.Code() == 0 {
		t.Errorf("the interface after GC: %s", p.Output())
	}
}

// Podman 4.3 with CNI: its network gives the container an address, and the NIC to this container alone.
func TestCNIEngine(t *testing.T) {
	h := newEngineHost(t, "older", "bookworm")
	h.serve(t)
	h.apply(t, tenants)
	h.run(t, "sh", "-c", `mkdir -p /etc/cni/net.d /opt/cni /run/lock && ln -s /opt/vrdma/vrdma /opt/cni/vrdma-cni
cat >>/etc/containers/containers.conf <<-END
	runtime = "crun"
	[network]
	network_backend = "cni"
	cni_plugin_dirs = ["/usr/lib/cni", "/opt/cni"]
END
printf 'runroot = "/run/containers/storage"\ngraphroot = "/var/lib/containers/storage"\n' >>/etc/containers/storage.conf`)
	h.write(t, "/etc/cni/net.d/web.conflist", fmt.Sprintf(`{"cniVersion": "0.4.0", "name": "web", "plugins": [
		{"type": "bridge", "bridge": "web0", "isGateway": true, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.9.0.0/24"}]]}},
		{"type": "vrdma-cni", "nic": "red.web", "socket": %q}]}`, socket))
	web := container{"bookworm", "red.web", []string{"--network", "web"}}
	h.stay(t, "a", web)
	if out := h.run(t, "vrdma", "events", "red/web"); !strings.Contains(out, "bound") || !strings.Contains(out, "to container a") {
		t.Errorf("vrdma events:\n%s", out)
	}
	if out := h.run(t, "vrdma", "top", "--once"); !regexp.MustCompile(`red +web +a +train`).MatchString(out) {
		t.Errorf("vrdma top:\n%s", out)
	}
	if out := h.run(t, "vrdma", "usage"); !strings.Contains(out, "NOW IN") {
		t.Errorf("vrdma usage:\n%s", out)
	}
	if out := h.exec(t, "a", "sh", "-c", "ip -br address show eth0; ibv_devinfo").OK(t, minute); !strings.Contains(out, "10.9.0.") || !strings.Contains(out, "PORT_ACTIVE") {
		t.Errorf("the container has:\n%s", out)
	}
	if p := h.start(t, web.argv("true")...); p.Wait(t, minute) == 0 || !strings.Contains(p.Output(), "NIC red/web is bound to container a") {
		t.Errorf("a second container is not refused when it starts: exit %d\n%s", p.Code(), p.Output())
	}
	h.run(t, "podman", "rm", "-f", "-t", "0", "a")
	if out := h.run(t, web.argv("ibv_devinfo")...); !strings.Contains(out, "PORT_ACTIVE") {
		t.Errorf("after the first is gone:\n%s", out)
	}
}
