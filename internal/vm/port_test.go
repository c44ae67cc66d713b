package vm

import (
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestDrain has the bell's socket drained before the loop has looked: it is told of the ring all the same.
func TestDrain(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	program, f := os.NewFile(uintptr(fds[0]), "program"), os.NewFile(uintptr(fds[1]), "bell")
	defer program.Close()
	c, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(epfd)
	watched := int(f.Fd()) // the loop has a copy of its own
	defer f.Close()
	if err := unix.EpollCtl(epfd, unix.EPOLL_CTL_ADD, watched, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET}); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		drain(c.(*net.UnixConn))
	}()
	for i := range 5 {
		if _, err := program.Write(make([]byte, 8)); err != nil {
			t.Fatal(err)
		}
		left := 0
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if left, err = unix.IoctlGetInt(watched, unix.TIOCINQ); err != nil || left <= 1 {
				break
			}
		}
		if err != nil || left != 1 {
			t.Fatalf("ring %d: %d bytes are left (%v), want 1", i, left, err)
		}
		events := make([]unix.EpollEvent, 1)
		if n, err := unix.EpollWait(epfd, events, 0); n != 1 {
			t.Fatalf("ring %d is not heard: %d events (%v)", i, n, err)
		}
	}
	program.Close()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("it still drains a connection that has ended")
	}
}
