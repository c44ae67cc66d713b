package cable

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// An End is where a cable reads and writes frames.
type End interface {
	Read(frame []byte) (int, error)
	Write(frame []byte) (int, error)
	SetReadDeadline(time.Time) error
	Close() error
}

// TAP makes an interface in the namespace whose other side is the returned end.
func TAP(t testing.TB, n *Namespace, name string, mtu int) End {
	t.Helper()
	var f *os.File
	var err error
	n.Do(t, func() { f, err = openTAP(name) })
	if err != nil {
		t.Fatalf("make the interface %s: %v; /dev/net/tun is needed, and root", name, err)
	}
	t.Cleanup(func() { f.Close() })
	n.up(t, name, mtu)
	return f
}

func openTAP(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	req, err := unix.NewIfreq(name)
	if err == nil {
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	// Only now the descriptor can be polled.
	return os.NewFile(uintptr(fd), "tap "+name), nil
}

// socket is an end that leads to another program's datagram socket.
type socket struct {
	*net.UnixConn
	peer *net.UnixAddr
}

// Socket makes an end that receives frames at the path local and sends them to the path remote, which may not exist
// yet.
func Socket(t testing.TB, local, remote string) End {
	t.Helper()
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: local, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &socket{UnixConn: c, peer: &net.UnixAddr{Name: remote, Net: "unixgram"}}
}

// Write sends a frame. Without a receiver the frame is lost.
func (s *socket) Write(frame []byte) (int, error) {
	n, err := s.WriteToUnix(frame, s.peer)
	for _, gone := range []error{unix.ECONNREFUSED, unix.ENOENT, unix.ENOBUFS} {
		if errors.Is(err, gone) {
			return len(frame), nil
		}
	}
	return n, err
}
