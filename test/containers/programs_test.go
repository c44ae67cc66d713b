package containers

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// four is a tenant with NICs that have IPv4 and IPv6 addresses.
func four() string {
	text := `
{apiVersion: vrdma.io/v1, kind: Tenant, metadata: {name: red}, spec: {}}
---
{apiVersion: vrdma.io/v1, kind: Network, metadata: {name: train, tenant: red}, spec: {subnets: [10.1.0.0/24, "fd00:1::/64"]}}
`
	for i := range 4 {
		text += fmt.Sprintf("---\n{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: n%d, tenant: red}, spec: {network: train, addresses: [10.1.0.%[2]d, \"fd00:1::%[2]d\"]}}\n", i, i+1)
	}
	return text
}

// Real programs run in containers that have the programs of this machine.
func TestPrograms(t *testing.T) {
	harness.Need(t, "mpirun", "mpicc", "iperf3", "ucmatose", "rping")
	h := newHost(t, machine)
	h.serve(t)
	h.apply(t, four())
	for i := range harness.Pick(2, 4) {
		h.stay(t, fmt.Sprintf("c%d", i), container{machine, fmt.Sprintf("red.n%d", i), append(bridged(fmt.Sprintf("10.88.0.1%d", i)), "--hostname", fmt.Sprintf("c%d", i))})
	}
	for _, address := range []string{"10.1.0.1", "fd00:1::1"} {
		t.Run("ucmatose_"+address, func(t *testing.T) {
			family := []string{"-f", "ip"}
			if strings.Contains(address, ":") {
				family[1] = "ip6"
			}
			s := h.exec(t, "c0", append([]string{"ucmatose", "-b", address}, family...)...)
			h.listening(t, s, net.JoinHostPort(address, "7471"))
			out := h.exec(t, "c1", append([]string{"ucmatose", "-s", address}, family...)...).OK(t, minute)
			if said := s.OK(t, minute); !strings.Contains(out, "return status 0") || !strings.Contains(said, "return status 0") {
				t.Errorf("the server says:\n%s\nthe client:\n%s", said, out)
			}
		})
	}
	t.Run("rping_ipv6", func(t *testing.T) { ping(t, h, h, "c0", "c1", "fd00:1::1") })
	t.Run("sockets", h.sockets)
	t.Run("mpi", func(t *testing.T) {
		if !harness.All() { // four polling ranks need more than one processor
			t.Skip("long form: make test-all")
		}
		h.mpi(t)
	})
}

// mpi runs four ranks of Open MPI, one in each container. mpirun is on the host and uses podman instead of ssh: only
// the start of ranks goes over TCP.
func (h *host) mpi(t *testing.T) {
	h.bring(t, harness.CompileWith(t, "mpi", "mpicc"), "/images/machine/tmp/mpi")
	agent := "#!/bin/sh\nto=$1; shift\nexec chroot /proc/1/root podman exec \"$to\" sh -c \"$*\"\n"
	h.write(t, "/images/machine/tmp/agent", agent)
	h.run(t, "sh", "-c", "chmod 755 /images/machine/tmp/agent && mount -t proc proc /images/machine/proc && mount --rbind /sys /images/machine/sys")
	before := h.sent(t, "c0", "c1", "c2", "c3")
	out := h.start(t, "chroot", "/images/machine", "mpirun", "--mca", "mpi_yield_when_idle", "1", "--allow-run-as-root", "--oversubscribe", "-np", "4", "--host", "c0,c1,c2,c3",
		"--mca", "plm_rsh_agent", "/tmp/agent", "--mca", "oob_tcp_if_include", "10.88.0.0/16", "--mca", "orte_keep_fqdn_hostnames", "1",
		"--mca", "pml", "ucx", "--mca", "osc", "ucx", "--mca", "btl", "^openib,vader,tcp",
		"-x", "UCX_TLS=rc_v,self", "-x", "UCX_NET_DEVICES=rxe0:1", "-x", "UCX_LOG_LEVEL=error", "/tmp/mpi").OK(t, 2*minute)
	for i := range 4 {
		if !strings.Contains(out, fmt.Sprintf("ok rank %d of 4", i)) {
			t.Errorf("rank %d does not say that all is well:\n%s", i, out)
		}
	}
	if sent := h.sent(t, "c0", "c1", "c2", "c3") - before; sent < 32<<20 {
		t.Errorf("%d bytes went through the NICs", sent)
	}
}

// sent returns how many bytes the containers' NICs have sent.
func (h *host) sent(t *testing.T, names ...string) (bytes int) {
	t.Helper()
	const unit = 4 // of InfiniBand's data counters
	for _, name := range names {
		p := h.exec(t, name, "cat", "/sys/class/infiniband/rxe0/ports/1/counters/port_xmit_data")
		p.OK(t, minute)
		n, err := strconv.Atoi(strings.TrimSpace(p.Stdout()))
		if err != nil {
			t.Fatal(err)
		}
		bytes += unit * n
	}
	return bytes
}

// overSockets is the prefix that starts a TCP program of a container with its connections over RDMA.
var overSockets = []string{"env", "LD_PRELOAD=/run/vrdma/vrdma.sock.d/libvrdma-sockets.so:/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so"}

// sockets runs iperf3, a TCP program, over RDMA, by the containers' ordinary addresses.
func (h *host) sockets(t *testing.T) {
	h.apply(t, ownNetwork)
	h.stay(t, "a", container{machine, "red.a", bridged("10.88.0.20")})
	h.stay(t, "b", container{machine, "red.b", bridged("10.88.0.21")})
	s := h.exec(t, "a", append(overSockets, "iperf3", "-s", "-1")...)
	h.listening(t, s, "[::]:5201")
	c := h.exec(t, "b", append(overSockets, "iperf3", "-c", "10.88.0.20", "-n", "16M", "-J")...)
	c.OK(t, minute)
	s.OK(t, minute)
	if sent := h.sent(t, "b"); sent < 16<<20 {
		t.Errorf("%d bytes went over RDMA, want 16 MiB:\n%s", sent, c.Output())
	}
}
