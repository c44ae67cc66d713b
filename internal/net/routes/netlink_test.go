package routes

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// netlinkSocket returns a netlink socket and its port.
func netlinkSocket(t *testing.T) (fd int, port uint32) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		t.Fatal(err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fd, sa.(*unix.SockaddrNetlink).Pid
}

// forge sends a message that looks like one of the kernel's to a socket.
func forge(t *testing.T, from int, to uint32, kind uint16, seq uint32) {
	t.Helper()
	msg := binary.NativeEndian.AppendUint32(nil, unix.SizeofNlMsghdr+unix.SizeofIfInfomsg)
	msg = binary.NativeEndian.AppendUint16(msg, kind)
	msg = binary.NativeEndian.AppendUint16(msg, unix.NLM_F_MULTI)
	msg = binary.NativeEndian.AppendUint32(msg, seq)
	msg = append(msg, make([]byte, 4+unix.SizeofIfInfomsg)...)
	if err := unix.Sendto(from, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: to}); err != nil {
		t.Fatalf("the test needs root: %v", err)
	}
}

// TestForged checks that only the kernel's answer to the current request counts.
func TestForged(t *testing.T) {
	clean, _ := netlinkSocket(t)
	want, err := addresses(clean)
	if err != nil {
		t.Fatal(err)
	}
	fd, port := netlinkSocket(t)
	evil, _ := netlinkSocket(t)
	forgeAll := func() {
		for i := range uint32(20) { // for the numbers that come now
			for _, kind := range []uint16{unix.NLMSG_DONE, unix.NLMSG_ERROR, unix.RTM_NEWLINK} {
				forge(t, evil, port, kind, questions.Load()+i)
			}
		}
	}
	forgeAll()
	if got, err := addresses(fd); err != nil || !slices.Equal(got, want) {
		t.Errorf("the addresses are %v, %v; want %v", got, err, want)
	}
	forgeAll()
	loopback := netip.MustParseAddr("127.0.0.1")
	if _, err := question(fd, unix.RTM_GETROUTE, 0, routeRequest(netip.IPv4Unspecified(), netip.MustParseAddr("127.0.0.2"))); err != nil {
		t.Fatal(err)
	}
	m, err := askAt(fd, unix.RTM_GETROUTE, routeRequest(netip.IPv4Unspecified(), loopback))
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range attributes(m, unix.SizeofRtMsg) {
		if b, _ := netip.AddrFromSlice(a.Value); a.Attr.Type == unix.RTA_DST && b != loopback {
			t.Errorf("the way to %v is answered with that to %v", loopback, b)
		}
	}
}

// flood sends meaningless messages to a port until stop is called.
func flood(fd int, port uint32) (stop func()) {
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-over:
				return
			default:
				unix.Sendto(fd, make([]byte, unix.SizeofNlMsghdr), unix.MSG_DONTWAIT, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: port})
			}
		}
	}()
	return func() {
		close(over)
		<-ended
	}
}

// TestEndless checks that an answer without an end is limited in time, both without messages and with many.
func TestEndless(t *testing.T) {
	fd, port := netlinkSocket(t)
	buf := make([]byte, 8192)
	if err := answer(fd, 1, buf, time.Millisecond, nil); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("no answer: %v", err)
	}
	evil, _ := netlinkSocket(t)
	stop := flood(evil, port)
	err := answer(fd, 1, buf, time.Minute, nil)
	stop()
	if err == nil {
		t.Error("a flood is an answer")
	}
}

// TestListsAgain checks that a failed dump does not affect the next one, which opens a new socket.
func TestListsAgain(t *testing.T) {
	opened := 0
	broken := true
	e := NewElsewhere(-1, -1, -1, func() (int, error) {
		opened++
		if broken {
			pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return -1, err
			}
			unix.Close(pair[1])
			return pair[0], nil // not a netlink socket: requests fail
		}
		return unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	})
	if _, err := e.Addresses(); err == nil {
		t.Error("a socket that is none of netlink's answers")
	}
	broken = false
	for range 2 {
		if _, err := e.Addresses(); err != nil {
			t.Error(err)
		}
	}
	if opened != 2 {
		t.Errorf("%d sockets were opened, want 2", opened)
	}
	e.Close()
	if _, err := e.Addresses(); err == nil || opened != 2 {
		t.Errorf("a closed one: %v, %d sockets", err, opened)
	}
}

// TestRudeToWatch checks that foreign messages to a watch neither end it nor keep Pause from returning.
func TestRudeToWatch(t *testing.T) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	w, err := NewWatch(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	sa, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	evil, _ := netlinkSocket(t)
	for _, n := range []int{0, 1, 8 << 10} {
		unix.Sendto(evil, make([]byte, n), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: sa.(*unix.SockaddrNetlink).Pid}) // newer kernels send no empty one
		if err := w.Wait(time.Millisecond); err != nil {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	stop := flood(evil, sa.(*unix.SockaddrNetlink).Pid)
	for range 10 {
		if err := w.Pause(time.Millisecond); err != nil {
			t.Error(err)
		}
	}
	stop()
	w.Close()
	if w.Wait(0) == nil || w.Pause(time.Minute) == nil || w.Sleep(time.Minute) {
		t.Error("a closed watch goes on")
	}
}
