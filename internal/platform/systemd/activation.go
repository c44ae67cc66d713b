package systemd

import (
	"fmt"
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// firstFD is the first inherited descriptor, SD_LISTEN_FDS_START.
const firstFD = 3

// mostFDs bounds LISTEN_FDS. The daemon's socket unit has one socket.
const mostFDs = 64

// Listeners returns the listening unix sockets that the service manager passed to this process, and removes the variables. It closes
// and reports inherited descriptors of another kind.
func Listeners() ([]*net.UnixListener, error) {
	count, err := inherited(os.Getenv, os.Getpid())
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		os.Unsetenv(name)
	}
	if err != nil {
		return nil, err
	}
	var out []*net.UnixListener
	for fd := firstFD; fd < firstFD+count; fd++ {
		unix.CloseOnExec(fd)
		l, err := listener(fd)
		if err != nil {
			for _, l := range out {
				l.Close()
			}
			return nil, err
		}
		out = append(out, l)
	}
	return out, nil
}

// inherited returns the number of descriptors that are meant for process pid.
func inherited(getenv func(string) string, pid int) (int, error) {
	text := getenv("LISTEN_FDS")
	if text == "" || getenv("LISTEN_PID") != strconv.Itoa(pid) {
		return 0, nil
	}
	count, err := strconv.Atoi(text)
	if err != nil || count < 0 || count > mostFDs {
		return 0, fmt.Errorf("LISTEN_FDS=%q: want a number of at most %d", text, mostFDs)
	}
	return count, nil
}

// listener makes a listener of a descriptor. The daemon's protocol needs the boundaries of messages: SOCK_SEQPACKET.
func listener(fd int) (*net.UnixListener, error) {
	f := os.NewFile(uintptr(fd), "LISTEN_FDS")
	if f == nil {
		return nil, fmt.Errorf("the inherited descriptor %d is not open", fd)
	}
	defer f.Close() // FileListener duplicates it
	if kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); err != nil {
		return nil, fmt.Errorf("the inherited descriptor %d is no socket: %w", fd, err)
	} else if kind != unix.SOCK_SEQPACKET {
		return nil, fmt.Errorf("the inherited descriptor %d is no socket for packets: the socket unit needs ListenSequentialPacket=", fd)
	}
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("the inherited descriptor %d: %w", fd, err)
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		l.Close()
		return nil, fmt.Errorf("the inherited descriptor %d is no unix socket", fd)
	}
	u.SetUnlinkOnClose(false) // the path belongs to the socket unit
	return u, nil
}
