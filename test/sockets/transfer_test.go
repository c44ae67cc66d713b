package sockets

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/harness"
)

// An ordinary TCP program makes one large transfer in each direction, and a hundred connections at once, one thread
// each. The device's counters prove that RDMA carried the data, and vrdma reports it.
func TestTransfer(t *testing.T) {
	bin := harness.CompileWith(t, "tcp", "gcc")
	for _, lib := range libraries(t) {
		for _, c := range []struct {
			name    string
			n, size int
		}{{"large", 1, harness.Pick(64<<20, 1<<30)}, {"crowd", 100, harness.Pick(1<<18, 4<<20)}} {
			t.Run(lib.name+"/"+c.name, func(t *testing.T) {
				d := harness.Device(t)
				port := harness.FreePort(t)
				args := []string{bin, fmt.Sprint(port), fmt.Sprint(c.n), fmt.Sprint(c.size)}
				d.Carried(t, harness.Traffic{Bytes: uint64(2 * c.n * c.size)}, func() {
					s := lib.launch(t, d, args...)
					d.AwaitManaged(t, s, port)
					client := lib.launch(t, d, append(args, "127.0.0.1")...)
					want := fmt.Sprintf("%d connections went over RDMA, none over TCP", c.n)
					if c.n == 1 {
						want = "1 connection went over RDMA, none over TCP"
					}
					for _, p := range []*harness.Process{client, s} {
						if out := p.OK(t, 3*minute); !strings.Contains(out, "all arrived") || !strings.Contains(out, want) {
							t.Errorf("want %q, got\n%s", want, out)
						}
					}
				})
				d.Unmanaged(t)
			})
		}
	}
}

// Either side is killed in the middle of a transfer: the other gets an error, and nothing is left. iperf3 is
// non-blocking and uses select; NetPIPE blocks in read and write.
func TestKill(t *testing.T) {
	harness.Need(t, "iperf3", "NPtcp")
	iperf := func(args ...string) func(port string) (s, c []string) {
		return func(port string) ([]string, []string) {
			return []string{"iperf3", "-s", "-1", "-p", port}, append([]string{"iperf3", "-c", "127.0.0.1", "-p", port, "-t", "300"}, args...)
		}
	}
	netpipe := func(port string) ([]string, []string) {
		args := []string{"NPtcp", "-P", port, "-l", "65536", "-u", "65536", "-n", "10000000", "-o", "/dev/null"}
		return args, append(args, "-h", "127.0.0.1")
	}
	for _, c := range []struct {
		name    string
		ends    int // connections while data flows
		program func(port string) (s, c []string)
	}{{"iperf3", 4, iperf()}, {"iperf3 -R", 4, iperf("-R")}, {"NPtcp", 2, netpipe}} {
		for _, lib := range libraries(t)[:harness.Pick(1, 2)] {
			for _, who := range []string{"server", "client"} {
				t.Run(fmt.Sprintf("%s/%s/%s", lib.name, c.name, who), func(t *testing.T) {
					d := harness.Device(t)
					port := harness.FreePort(t)
					server, client := c.program(fmt.Sprint(port))
					s := lib.launch(t, d, server...)
					d.AwaitManaged(t, s, port)
					before := d.Traffic(t)
					cl := lib.launch(t, d, client...)
					moving := func() bool { return d.Established(t) == c.ends && d.Traffic(t).Bytes > before.Bytes+16<<20 }
					if !harness.Poll(minute, func() bool { return moving() || s.Ended(0) || cl.Ended(0) }) || !moving() {
						t.Fatalf("no data flows: %+v\n%s\n%s", d.Status(t).Connections, s.Output(), cl.Output())
					}
					killed, other := s, cl
					if who == "client" {
						killed, other = cl, s
					}
					killed.Signal(syscall.SIGKILL) // the whole group: vrdma and the program
					if !other.Ended(minute) {
						t.Errorf("the other side goes on: %s\n%s", other.Fate(), other.Output())
					}
					d.Unmanaged(t)
				})
			}
		}
	}
}

// Either side is killed at a random moment, during connect and close too: nothing is left.
func TestKillAtRandom(t *testing.T) {
	bin := harness.CompileWith(t, "tcp", "gcc")
	d := harness.Device(t)
	for round := range harness.Pick(8, 60) {
		port := harness.FreePort(t)
		args := []string{bin, fmt.Sprint(port), "20", fmt.Sprint(1 << 20)}
		s := machine.launch(t, d, args...)
		d.AwaitManaged(t, s, port)
		c := machine.launch(t, d, append(args, "127.0.0.1")...)
		moment := time.Duration(rand.IntN(1500)) * time.Millisecond
		c.Ended(moment)
		killed, other := s, c
		if round%2 == 1 {
			killed, other = c, s
		}
		killed.Signal(syscall.SIGKILL)
		// A server whose client died early waits for others. Its resources of the dead client must be released.
		quiet := func() bool { return other.Ended(0) || other == s && d.Established(t) == 0 }
		if !harness.Poll(minute, quiet) {
			t.Errorf("round %d, killed %s after %v: %s\n%s\n%+v", round, killed.Name, moment, other.Fate(), other.Output(), d.Status(t).Connections)
		}
		other.Signal(syscall.SIGKILL)
		other.Ended(minute)
		d.Unmanaged(t)
	}
}

// Peers without RDMA are served over TCP, in both directions, and vrdma says why.
func TestPlainPeer(t *testing.T) {
	harness.Need(t, "nc.openbsd")
	d := harness.Device(t)
	for _, c := range []struct{ name, over, want string }{
		{"server", "server", "0 connections went over RDMA, 1 over TCP (1 connection from a peer without RDMA"},
		{"client", "client", "0 connections went over RDMA, 1 over TCP (1 connection to a peer that does not listen on RDMA"},
	} {
		t.Run(c.name, func(t *testing.T) {
			port := fmt.Sprint(harness.FreePort(t))
			start := func(side, script string) *harness.Process {
				argv := []string{"sh", "-c", script}
				if side == c.over {
					return machine.launch(t, d, argv...)
				}
				cmd := d.Command()
				cmd.Path, cmd.Args = "/bin/sh", argv
				return harness.Spawn(t, cmd)
			}
			s := start("server", "exec nc.openbsd -N -l "+port)
			number := 0
			fmt.Sscan(port, &number)
			harness.Listening(t, s, number, minute)
			cl := start("client", "echo hello | nc.openbsd -N 127.0.0.1 "+port)
			cl.OK(t, minute)
			s.OK(t, minute)
			if !strings.Contains(s.Stdout(), "hello") {
				t.Errorf("the server got %q, want hello", s.Stdout())
			}
			if out := s.Output() + cl.Output(); !strings.Contains(out, c.want) {
				t.Errorf("vrdma did not say %q:\n%s", c.want, out)
			}
		})
	}
}

// curl does not wait in connect, so the result of a connection is known only later. A refused connection does not
// count.
func TestRefused(t *testing.T) {
	harness.Need(t, "curl", "/usr/bin/python3")
	const refused, none = 7, "0 connections went over RDMA, none over TCP" // curl's status
	for _, lib := range libraries(t) {
		d := harness.Device(t)
		for _, c := range []struct {
			name, host string
			listens    bool // without RDMA
			want       string
			code       int
		}{
			{"nobody", "127.0.0.1", false, none, refused},
			{"nobody, IPv6", "::1", false, none, refused},
			{"plain peer", "127.0.0.1", true, "0 connections went over RDMA, 1 over TCP (1 connection to a peer that does not listen on RDMA", 0},
		} {
			t.Run(lib.name+"/"+c.name, func(t *testing.T) {
				port := harness.FreePort(t)
				if c.listens {
					cmd := d.Command()
					cmd.Path, cmd.Args = "/usr/bin/python3", strings.Fields(fmt.Sprintf("python3 -m http.server -b %s -d %s %d", c.host, harness.Directory(t, nil), port))
					harness.Listening(t, harness.Spawn(t, cmd), port, minute)
				}
				p := lib.launch(t, d, "curl", "-sS", "http://"+net.JoinHostPort(c.host, fmt.Sprint(port)))
				if code := p.Wait(t, minute); code != c.code || !strings.Contains(p.Output(), c.want) {
					t.Errorf("status %d, want %d and %q:\n%s", code, c.code, c.want, p.Output())
				}
			})
		}
	}
}

// vrdma counts a program's connections without RDMA, whatever happened before.
func TestCount(t *testing.T) {
	const udp = "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)"
	for _, lib := range libraries(t) {
		d := harness.Device(t)
		for _, c := range []struct{ name, script string }{
			{"plain", udp},
			{"closed all descriptors", "os.closerange(3, 1 << 16); " + udp},
			{"gave up its rights", "os.getuid() or os.setresuid(65534, 65534, 65534); " + udp},
			{"made by fork", "os.fork() and os.wait() or " + udp},
			{"started by the program", "subprocess.run([sys.executable, '-c', 'import socket; " + udp + "'])"},
		} {
			t.Run(lib.name+"/"+c.name, func(t *testing.T) {
				out := lib.launch(t, d, "/usr/bin/python3", "-c", "import os, socket, subprocess, sys; "+c.script).OK(t, minute)
				if want := "0 connections went over RDMA, none over TCP (1 UDP socket left to the kernel)"; !strings.Contains(out, want) {
					t.Errorf("vrdma did not say %q:\n%s", want, out)
				}
			})
		}
	}
}

// Whatever ends vrdma, no file is left.
func TestKilledLeavesNoFile(t *testing.T) {
	d := harness.Device(t)
	dir := harness.Directory(t, nil)
	cmd := d.Command("run", "--socket", d.Socket, "--quiet", "--sockets", "--", "sh", "-c", "echo ready; exec sleep 300")
	cmd.Env = append(cmd.Env, "TMPDIR="+dir)
	p := harness.Spawn(t, cmd)
	p.Printed(t, "ready", minute)
	p.Signal(syscall.SIGKILL) // the whole group: vrdma and the program
	if !p.Ended(minute) {
		t.Fatalf("it goes on: %s", p.Fate())
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left in %s: %v (%v), want nothing", dir, left, err)
	}
}

// An error names the missing library and its package.
func TestMissingLibrary(t *testing.T) {
	d := harness.Device(t)
	cmd := d.Command("run", "--socket", d.Socket, "--sockets", "--", "true")
	cmd.Env = append(cmd.Env, "VRDMA_RSPRELOAD=/nonexistent/librspreload.so")
	p := harness.Spawn(t, cmd)
	if code := p.Wait(t, minute); code != 3 {
		t.Errorf("exit %d, want 3", code)
	}
	for _, want := range []string{"/nonexistent/librspreload.so", "librdmacm1"} {
		if !strings.Contains(p.Output(), want) {
			t.Errorf("want %q in\n%s", want, p.Output())
		}
	}
}
