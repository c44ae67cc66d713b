package protocol

import (
	"net"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestFullBacklog: a client that connects while the backlog is full waits for the daemon to accept.
func TestFullBacklog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 1); err != nil {
		t.Fatal(err)
	}
	for {
		u, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
		if err != nil {
			break // full
		}
		defer u.Close()
	}
	done := make(chan error, 1)
	go func() {
		u, err := Connect(path)
		if err == nil {
			u.Close()
		}
		done <- err
	}()
	select {
	case err := <-done:
		t.Fatalf("connected to a full backlog: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	if c, _, err := unix.Accept(fd); err != nil {
		t.Fatal(err)
	} else {
		defer unix.Close(c)
	}
	if err := <-done; err != nil {
		t.Errorf("after the daemon has accepted: %v", err)
	}
}
