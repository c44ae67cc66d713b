package containers

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/harness"
)

// newEngineHost makes a host with the engines of an unpacked Debian: older, middle, newer.
func newEngineHost(t *testing.T, name string, images ...string) *host {
	t.Helper()
	return newHostOf(t, harness.Engines(t, name), controlGroup(t), images...)
}

// write writes a file in the host.
func (h *host) write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/root%s", h.pid, path), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// wrapper is the Docker configuration that names our runtime.
var wrapper = fmt.Sprintf(`{"runtimes": {"vrdma": {"path": "/opt/vrdma/vrdma", "runtimeArgs": ["--socket", %q, "oci-runtime", "--"]}}}`, socket)

// dockerd starts Docker with this configuration and the image bookworm. It makes no bridge and no firewall rules.
func (h *host) dockerd(t *testing.T, config string) {
	t.Helper()
	h.run(t, "mkdir", "-p", "/etc/docker")
	h.write(t, "/etc/docker/daemon.json", config)
	var d *harness.Process
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("dockerd, last part:\n%s", harness.Tail(d.Output(), 40))
		}
	})
	var up bool
	for range 2 { // on a busy machine dockerd ends when its containerd is too slow
		d = h.start(t, "dockerd", "--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--storage-driver=overlay2",
			"--exec-opt", "native.cgroupdriver=cgroupfs", "--log-level=warn")
		up = harness.Poll(minute, func() bool {
			time.Sleep(50 * time.Millisecond) // between two attempts, because each starts a process
			return d.Ended(0) || h.start(t, "docker", "version").Wait(t, minute) == 0
		})
		if !d.Ended(0) {
			break
		}
		t.Logf("dockerd has ended: %s\n%s", d.Fate(), harness.Tail(d.Output(), 40))
	}
	if !up || d.Ended(0) {
		t.Fatalf("dockerd does not answer: %s\n%s", d.Fate(), d.Output())
	}
	h.start(t, "sh", "-c", "tar -c -C /images/bookworm . | docker import - bookworm").OK(t, 5*minute)
}

// docker returns the command line of a container that lives as long as its program.
func docker(flags []string, program ...string) []string {
	return append(append(append([]string{"docker", "run", "--rm", "--network", "none"}, flags...), "bookworm"), program...)
}

// wrapped returns the flags for a NIC where Docker has no CDI.
func wrapped(nic string) []string {
	return []string{"--runtime", "vrdma", "--device", "/dev/null:/vrdma.io/nic=" + nic}
}

// Docker 20.10 has no CDI: our runtime gives the container its NIC.
func TestDockerRuntime(t *testing.T) {
	if !harness.All() {
		t.Skip("long form: make test-all")
	}
	h := newEngineHost(t, "older", "bookworm")
	h.serve(t)
	h.apply(t, tenants)
	h.dockerd(t, wrapper)
	t.Logf("%s", h.run(t, "docker", "version", "--format", "{{.Server.Version}}"))
	h.dockerPair(t, wrapped)
	if p := h.start(t, docker(wrapped("red.no"), "true")...); p.Wait(t, minute) == 0 || !strings.Contains(p.Output(), "there is no NIC red/no") {
		t.Errorf("a NIC that is not there: exit %d:\n%s", p.Code(), p.Output())
	}
	if out := h.run(t, docker([]string{"--runtime", "vrdma"}, "ls", "/etc")...); strings.Contains(out, "ld.so.preload") {
		t.Errorf("a container that asks for no NIC has:\n%s", out)
	}
}

// dockerPair runs rping between two containers without any rights. They sleep instead of polling: each is in a control
// group of its own, and they may share one processor.
func (h *host) dockerPair(t *testing.T, nic func(string) []string) {
	t.Helper()
	s := h.start(t, docker(append(nic("red.web"), hard...), "ib_send_bw", "-R", "-e", "-F", "-n", "100")...)
	h.listening(t, s, "0.0.0.0:18515")
	h.run(t, docker(append(nic("red.db"), hard...), "ib_send_bw", "-R", "-e", "-F", "-n", "100", "10.1.0.1")...)
	s.OK(t, minute)
	if out := h.run(t, docker(nic("red.web"), "ip", "address", "show", "dev", "vrdma0")...); !strings.Contains(out, "inet 10.1.0.1/24") || !strings.Contains(out, "LOWER_UP") {
		t.Errorf("the NIC's interface:\n%s", out)
	}
	if out := h.run(t, docker(nic("default"), "env", "-i", "/usr/bin/ibv_devices")...); !strings.Contains(out, "rxe0") {
		t.Errorf("the default NIC:\n%s", out)
	}
}

// A Docker with CDI.
func TestDockerDevice(t *testing.T) {
	if !harness.All() {
		t.Skip("long form: make test-all")
	}
	h := newEngineHost(t, "newer", "bookworm")
	h.serve(t)
	h.apply(t, tenants)
	h.write(t, "/images/bookworm/etc/ld.so.preload", own+"\n")
	h.dockerd(t, "{}")
	t.Logf("%s", h.run(t, "docker", "version", "--format", "{{.Server.Version}}"))
	h.dockerPair(t, device)
	h.run(t, "docker", "run", "-d", "--network", "none", "--name", "fine", "bookworm", "sleep", "1000")
	if p := h.start(t, "vrdma", "nic", "check", "fine"); p.Wait(t, minute) != 1 || !strings.Contains(p.Output(), "it has an /etc/ld.so.preload of its own") {
		t.Errorf("vrdma nic check of a container without a NIC: exit %d\n%s", p.Code(), p.Output())
	}
	h.run(t, "docker", "rm", "-f", "fine")
	mergedIn(t, h.run(t, docker(append(device("red.web"), hard...), "sh", "-c", showMerged)...))
}

// Docker 25 to 27 have CDI if daemon.json enables it.
func TestDockerFeature(t *testing.T) {
	if !harness.All() {
		t.Skip("long form: make test-all")
	}
	h := newEngineHost(t, "middle", "bookworm")
	h.serve(t)
	h.apply(t, tenants)
	h.dockerd(t, `{"features": {"cdi": true}}`)
	version := h.run(t, "docker", "version", "--format", "{{.Server.Version}}")
	if t.Logf("%s", version); !strings.HasPrefix(version, "26.") {
		t.Errorf("this is another Docker: %s", version)
	}
	h.dockerPair(t, device)
}
