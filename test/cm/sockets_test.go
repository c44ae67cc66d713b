package cm

import (
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"vrdma/test/harness"
)

// sockets is a program under `vrdma run --sockets`.
func sockets(t *testing.T, d *harness.Daemon, argv ...string) *harness.Process {
	t.Helper()
	cmd := exec.Command(harness.Binary(), append([]string{"run", "--socket", d.Socket, "--sockets", "--"}, argv...)...)
	cmd.Env = d.Command().Env
	return harness.Spawn(t, cmd)
}

// An ordinary TCP program runs over RDMA: one large transfer, and several connections
// at once. The device's counters prove it, and vrdma says so. (No more than three: the
// service thread of rdma-core 44's rsockets uses freed memory when a fourth socket comes.)
func TestSockets(t *testing.T) {
	d, _ := device(t)
	bin := harness.CompileWith(t, "tcp", "gcc")
	for _, c := range []struct {
		name    string
		n, size int
	}{{"large", 1, pick(64<<20, 1<<30)}, {"several", 3, 10 << 20}} {
		t.Run(c.name, func(t *testing.T) {
			port := harness.FreePort(t)
			args := []string{bin, fmt.Sprint(port), fmt.Sprint(c.n), fmt.Sprint(c.size)}
			d.Carried(t, harness.Traffic{Bytes: uint64(c.n * c.size)}, func() {
				s := sockets(t, d, args...)
				d.AwaitManaged(t, s, port)
				client := sockets(t, d, append(args, "127.0.0.1")...)
				want := fmt.Sprintf("%d connections went over RDMA, none over TCP", c.n)
				for _, p := range []*harness.Process{client, s} {
					if out := p.OK(t, 2*minute); !strings.Contains(out, "all arrived") || !strings.Contains(out, want) {
						t.Errorf("want %q, got\n%s", want, out)
					}
				}
			})
		})
	}
}

// A socket that rsockets does not take goes over TCP, and vrdma says why.
func TestSocketsTCP(t *testing.T) {
	harness.Need(t, "/usr/bin/python3")
	d, _ := device(t)
	p := sockets(t, d, "/usr/bin/python3", "-c", `
import socket
l = socket.create_server(('127.0.0.1', 0))
c = socket.create_connection(l.getsockname())
print(l.accept()[0].fileno() > 0)
`)
	if out := p.OK(t, minute); !strings.Contains(out, "True") || !strings.Contains(out, "0 connections went over RDMA, 2 over TCP") || !strings.Contains(out, "SOCK_CLOEXEC") {
		t.Errorf("printed\n%s", out)
	}
}

// Killing either side disconnects, and leaves nothing. A writer hears of it; a program
// that is blocked in read does not, from rdma-core 44's rsockets.
func TestSocketsKill(t *testing.T) {
	d, _ := device(t)
	bin := harness.CompileWith(t, "tcp", "gcc")
	for _, who := range []string{"server", "client"} {
		t.Run(who, func(t *testing.T) {
			port := harness.FreePort(t)
			args := []string{bin, fmt.Sprint(port), "3", fmt.Sprint(512 << 20)}
			s := sockets(t, d, args...)
			d.AwaitManaged(t, s, port)
			c := sockets(t, d, append(args, "127.0.0.1")...)
			if !harness.Poll(20*time.Second, func() bool { return established(d, t) == 6 }) {
				t.Fatalf("not connected: %+v\n%s\n%s", d.Status(t).Connections, s.Output(), c.Output())
			}
			killed, other := s, c
			if who == "client" {
				killed, other = c, s
			}
			killed.Signal(syscall.SIGKILL) // the whole group: vrdma and the program
			if who == "client" {
				if !harness.Poll(20*time.Second, func() bool { return established(d, t) == 0 }) {
					t.Errorf("still connected: %+v", d.Status(t).Connections)
				}
				other.Signal(syscall.SIGKILL)
			}
			if !other.Ended(40 * time.Second) {
				t.Errorf("the other side goes on: %s\n%s", other.Fate(), other.Output())
			}
			if !harness.Poll(10*time.Second, func() bool { return len(d.Status(t).Connections) == 0 }) {
				t.Errorf("left behind: %+v", d.Status(t).Connections)
			}
		})
	}
}
