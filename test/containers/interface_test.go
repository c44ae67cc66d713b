package containers

import (
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"vrdma/test/harness"
)

// inside is a program of this machine in the network namespace of a container that stays.
func (h *host) inside(t *testing.T, name string, argv ...string) *exec.Cmd {
	t.Helper()
	pid := strings.TrimSpace(h.run(t, "podman", "inspect", "-f", "{{.State.Pid}}", name))
	return exec.Command("nsenter", append([]string{fmt.Sprintf("--net=/proc/%d/root/proc/%s/ns/net", h.pid, pid)}, argv...)...)
}

// iperf has two containers exchange bytes over TCP, by an address of the first.
func iperf(t *testing.T, on, from *host, server, client, address string) {
	t.Helper()
	s := harness.Spawn(t, on.inside(t, server, "iperf3", "-s", "-1", "--forceflush"))
	s.Printed(t, "listening", minute)
	harness.Spawn(t, from.inside(t, client, "iperf3", "-c", address, "-n", "20M")).OK(t, minute)
	s.OK(t, minute)
}

// reaches waits until a container reaches an address by ICMP.
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

// address is what ip says of a container's interface; "" if there is none.
func (h *host) address(t *testing.T, name, device string) string {
	t.Helper()
	p := h.exec(t, name, "ip", "address", "show", "dev", device)
	if p.Wait(t, minute) != 0 {
		return ""
	}
	return p.Output()
}

// A NIC of a network with way vxlan is an interface of the container, too: what has the NIC's address by RDMA has it by
// sockets.
func TestInterface(t *testing.T) {
	harness.Need(t, "iperf3", "nsenter")
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
	reaches(t, h, "b", "10.1.0.1")
	talk(t, h, h, "a", "b", "10.1.0.1") // with perftest's own exchange
	ping(t, h, h, "a", "b", "10.1.0.1")
	iperf(t, h, h, "a", "b", "10.1.0.1")
	if p := h.exec(t, "c", "ping", "-c", "1", "-W", "1", "10.1.0.1"); p.Wait(t, minute) == 0 {
		t.Errorf("a container of another tenant reaches it:\n%s", p.Output())
	}

	// Addresses are the NIC's: another one is not carried.
	pretend := h.inside(t, "b", "sh", "-c", "ip address add 10.1.0.77/24 dev vrdma0 && busybox ping -c 1 -W 1 -I 10.1.0.77 10.1.0.1")
	if out, err := pretend.CombinedOutput(); err == nil {
		t.Errorf("a container has an address that it was not given:\n%s", out)
	}

	// The daemon goes, and the next one finds container and interface.
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

	// It ends with the container, or with the NIC.
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
