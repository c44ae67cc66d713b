package eventfile

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func pair(t *testing.T) (*Socket, *os.File) {
	t.Helper()
	s, client, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		client.Close()
	})
	return s, client
}

// Posted events are read as one message each, or withdrawn, in order.
func TestEvents(t *testing.T) {
	s, client := pair(t)
	for i := range byte(3) {
		if !s.Post([16]byte{i}, 8) {
			t.Fatal("no room for an event")
		}
	}
	var b [64]byte
	if n, err := client.Read(b[:]); n != 8 || err != nil || b[0] != 0 {
		t.Errorf("read %d bytes, %v, of event %d", n, err, b[0])
	}
	for i := byte(1); i < 3; i++ {
		if e, n := s.Withdraw(); n != 8 || e[0] != i {
			t.Errorf("took back %d bytes of event %d, want 8 of %d", n, e[0], i)
		}
	}
	if _, n := s.Withdraw(); n != 0 {
		t.Errorf("took back %d bytes of nothing", n)
	}
	full := 0
	for s.Post([16]byte{}, 16) {
		full++
	}
	if client.Read(b[:]); !s.Post([16]byte{}, 16) {
		t.Errorf("after %d events, and one read, there is no room", full)
	}
}

func TestHungUp(t *testing.T) {
	s, client := pair(t)
	hungUp := func() bool {
		p := []unix.PollFd{{Fd: int32(s.HangupFd())}}
		n, err := unix.Poll(p, 0)
		return err == nil && n == 1 && p[0].Revents&unix.POLLHUP != 0
	}
	if hungUp() {
		t.Error("a client that listens has hung up")
	}
	unix.Shutdown(int(client.Fd()), unix.SHUT_RDWR)
	if !hungUp() {
		t.Error("a client that has shut its end down listens")
	}
	if !s.Post([16]byte{}, 8) {
		t.Error("an event for nobody waits")
	}
}

func TestRaise(t *testing.T) {
	s, client := pair(t)
	readable := func() bool {
		p := []unix.PollFd{{Fd: int32(client.Fd()), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		return err == nil && n == 1
	}
	if readable() || !s.Raise() || !readable() {
		t.Error("the client's end is not readable while it is raised, and only then")
	}
	if s.Lower(); readable() {
		t.Error("the client's end is readable after Lower")
	}
	s.Lower()
}

// A client cannot make the daemon close the socket with unread data, and can still read events and hang up.
func TestNothingComesBack(t *testing.T) {
	s, client := pair(t)
	fd := int(client.Fd())
	if err := unix.Sendmsg(fd, []byte{1}, unix.UnixRights(0), nil, unix.MSG_NOSIGNAL); err != unix.EPIPE {
		t.Errorf("sending a descriptor: %v, want EPIPE", err)
	}
	if !s.Post([16]byte{7}, 8) {
		t.Error("no room for an event")
	}
	var b [16]byte
	if n, err := unix.Read(fd, b[:]); n != 8 || err != nil || b[0] != 7 {
		t.Errorf("read %d bytes, %v: % x", n, err, b)
	}
	ends := []unix.PollFd{{Fd: int32(s.HangupFd())}, {Fd: int32(fd), Events: unix.POLLIN}}
	if n, err := unix.Poll(ends, 0); n != 0 || err != nil {
		t.Errorf("poll: %d, %v, %+v", n, err, ends)
	}
	if err := unix.Shutdown(fd, unix.SHUT_RDWR); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Poll(ends[:1], 0); err != nil || ends[0].Revents&unix.POLLHUP == 0 {
		t.Errorf("after the client hung up: %v, %+v", err, ends[0])
	}
}

// TestOf checks that another daemon continues a socket: events that the first one has posted stay in it, the first one may close its
// descriptors or continue, and the signal stays raised.
func TestOf(t *testing.T) {
	s, client := pair(t)
	s.Post([16]byte{1}, 8)
	s.Post([16]byte{2}, 8)
	fds := s.Fds()
	for i := range fds { // what SCM_RIGHTS does
		var err error
		if fds[i], err = unix.FcntlInt(uintptr(fds[i]), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			t.Fatal(err)
		}
	}
	next, err := Of(fds)
	if err != nil {
		t.Fatal(err)
	}
	read := func(want byte) {
		t.Helper()
		var b [16]byte
		if n, err := unix.Read(int(client.Fd()), b[:]); n != 8 || err != nil || b[0] != want {
			t.Errorf("read %d bytes, %v, of event %d, want 8 of %d", n, err, b[0], want)
		}
	}
	read(1)
	next.Post([16]byte{3}, 8)
	s.Post([16]byte{4}, 8) // the first one resumes
	for _, want := range []byte{2, 3} {
		if e, n := next.Withdraw(); n != 8 || e[0] != want {
			t.Errorf("took back %d bytes of event %d, want %d", n, e[0], want)
		}
	}
	read(4)
	if !s.Raise() {
		t.Fatal("cannot raise")
	}
	if next.Lower(); next.Raise() != true {
		t.Fatal("cannot raise again")
	}
	if _, n := s.Withdraw(); n != 1 {
		t.Error("the signal is not raised once")
	}
	next.Close()
	if !s.Post([16]byte{5}, 8) {
		t.Error("no space for an event")
	}
	read(5)
}

// TestNeverBlocks checks that a socket does not block, even if a process that shares it has made it blocking.
func TestNeverBlocks(t *testing.T) {
	s, _ := pair(t)
	if err := unix.SetNonblock(s.Fds()[0], false); err != nil {
		t.Fatal(err)
	}
	for s.Post([16]byte{}, 16) {
	}
	if s.Raise() {
		t.Error("raised a full socket")
	}
}

func TestOfRefuses(t *testing.T) {
	s, _ := pair(t)
	file, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	stream, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(stream[0])
	defer unix.Close(stream[1])
	for name, fd := range map[string]int{"a file": int(file.Fd()), "a stream": stream[0], "nothing": -1} {
		for i := range 2 {
			fds := s.Fds()
			fds[i] = fd
			if _, err := Of(fds); err == nil {
				t.Errorf("%s as descriptor %d: no error", name, i)
			}
		}
	}
}
