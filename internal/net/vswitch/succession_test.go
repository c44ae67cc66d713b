package vswitch

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"os"
	"reflect"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/net/vhostuser"
)

// plugged returns a switch with one port, and the ends of a tap there.
func plugged(t *testing.T) (s *Switch, p *Port, container, file *os.File) {
	t.Helper()
	s = New(Config{})
	t.Cleanup(s.Close)
	a := netip.MustParseAddr("10.1.0.1")
	p, err := s.Plug(PortConfig{NIC: "red/a", Network: "red/net", MTU: 1500, MAC: overlay.MACOf(a), Addrs: []netip.Addr{a}, Subnets: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}})
	if err != nil {
		t.Fatal(err)
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	container, file = os.NewFile(uintptr(fds[0]), "container"), os.NewFile(uintptr(fds[1]), "tap")
	t.Cleanup(func() { container.Close(); file.Close() })
	return s, p, container, file
}

func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("still not: %s", what)
		}
	}
}

// TestPause: while a switch is paused it reads no frame of a container, also when the container is above its rate. The
// next switch reads those that wait.
func TestPause(t *testing.T) {
	s, p, container, file := plugged(t)
	served := make(chan error, 1)
	go func() { served <- p.ServeTap(file) }()
	a := overlay.MACOf(netip.MustParseAddr("10.1.0.1"))
	f := append(make([]byte, headerSize), ether(a, a, etherIPv4, packet("10.1.0.1", "10.1.0.2", protoUDP, make([]byte, 1000)))...)
	send := func() {
		t.Helper()
		if _, err := container.Write(f); err != nil {
			t.Fatal(err)
		}
	}
	pause := func() (resume func()) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		resume, err := s.Pause(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return resume
	}
	send()
	eventually(t, "a frame", func() bool { return p.SentFrames.Load() == 1 })
	resume := pause()
	send()
	buffer := make([]byte, 1)
	if n, _, err := unix.Recvfrom(int(file.Fd()), buffer, unix.MSG_PEEK|unix.MSG_DONTWAIT); n != 1 || err != nil || p.SentFrames.Load() != 1 {
		t.Errorf("%d bytes of the frame wait, %v, and %d frames are sent", n, err, p.SentFrames.Load())
	}
	resume()
	eventually(t, "the frame that waited", func() bool { return p.SentFrames.Load() == 2 })
	p.SetRate(1, 0, 1) // a frame is days
	send()
	send()
	eventually(t, "a frame above the rate", func() bool { return p.SentFrames.Load() >= 3 })
	resume = pause()
	file.Close()
	resume()
	if err := <-served; err != nil {
		t.Error(err)
	}
	pause()() // nothing is attached
}

// TestThaw: the next switch has the counters and flows.
func TestThaw(t *testing.T) {
	s, p, _, _ := plugged(t)
	for i, c := range p.all() {
		c.Store(uint64(i + 1))
	}
	four := flow{netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("10.1.0.2"), 40000, 80, protoTCP}
	six := flow{netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2"), 40001, 53, protoUDP}
	p.net.flows.add(four)
	p.net.flows.add(six)
	st := s.Freeze()
	next, o, _, _ := plugged(t)
	st.Ports = append(st.Ports, PortState{NIC: "red/gone", Counters: make([]uint64, 100)})
	if err := next.Thaw(st); err != nil {
		t.Fatal(err)
	}
	if got, want := o.freeze(), p.freeze(); !reflect.DeepEqual(got, want) {
		t.Errorf("counters %v, want %v", got, want)
	}
	if !o.net.flows.has(four) || !o.net.flows.has(six) || len(o.net.flows.now) != 2 {
		t.Errorf("flows: %v", o.net.flows.now)
	}
	st.Networks[0].Flows = st.Networks[0].Flows[1:]
	if next.Thaw(st) == nil {
		t.Error("a part of a flow was accepted")
	}
}

// TestGuestSuccession: while a switch is paused, no frame leaves a guest. The next switch continues with the rings of
// both guests, also with frames that were sent in between.
func TestGuestSuccession(t *testing.T) {
	s, pa, pb := pairOfPorts(t)
	a, b := attachDriver(t, pa, vhostuser.NetCSum|vhostuser.NetHostTSO4), attachDriver(t, pb, allOffloads)
	text := func(i int) []byte {
		return frameOf(pb.MAC, pa.MAC, "10.1.0.1", "10.1.0.2", protoUDP, datagram(1, uint16(i), nil))
	}
	var at []int
	exchange := func(i int) {
		t.Helper()
		b.await(0, uint16(i+1))
		if got := b.got(i, at[i]); !bytes.Equal(got[headerSize:], text(i)) {
			t.Fatalf("frame %d is %x", i, got)
		}
	}
	for range 8 {
		at = append(at, b.add(0, 2048, nil))
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	a.send(header{}, text(0))
	exchange(0)
	resume, err := s.Pause(ctx)
	if err != nil {
		t.Fatal(err)
	}
	a.send(header{}, text(1))
	if a.used(1) != 1 || b.used(0) != 1 {
		t.Errorf("paused, %d frames were taken and %d arrived", a.used(1), b.used(0))
	}
	resume()
	exchange(1)
	a.await(1, 2)

	if resume, err = s.Pause(ctx); err != nil {
		t.Fatal(err)
	}
	_, na, nb := pairOfPorts(t)
	var serve []func() error
	sockets := []*net.UnixConn{a.other, b.other}
	for i, p := range [][2]*Port{{pa, na}, {pb, nb}} {
		var fds []int
		st, err := p[0].FreezeGuest(func(fd int) uint32 {
			n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				t.Error(err)
			}
			fds = append(fds, n)
			return uint32(len(fds))
		})
		if err != nil || st == nil {
			t.Fatalf("the state of a guest: %v, %v", st, err)
		}
		f, err := sockets[i].File()
		if err != nil {
			t.Fatal(err)
		}
		socket, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		runs, run, err := p[1].ThawGuest(socket.(*net.UnixConn), new(vhostuser.Device), st, func(i uint32) (int, error) { return fds[i-1], nil })
		if err != nil || !runs.Runs() {
			t.Fatalf("the guest runs: %v, %v", runs, err)
		}
		serve = append(serve, run)
		p[0].behind.Load().close() // the other daemon ends
	}
	resume()
	eventually(t, "the end of the old switch", func() bool { return !pa.Attached() && !pb.Attached() })
	a.send(header{}, text(2))
	ended := make(chan error, 2)
	for _, run := range serve {
		go func() { ended <- run() }()
	}
	t.Cleanup(func() {
		a.socket.Close()
		b.socket.Close()
		for range serve {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
	eventually(t, "both cards", func() bool { return na.Attached() && nb.Attached() })
	for i := 3; i < 8; i++ {
		a.send(header{}, text(i))
	}
	a.await(1, 8)
	b.await(0, 7) // b may not have been attached yet when the third was sent
	if sent := na.SentFrames.Load(); sent != 6 {
		t.Errorf("%d frames were sent through the next switch, want 6", sent)
	}
}
