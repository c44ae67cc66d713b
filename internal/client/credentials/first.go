package credentials

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// OwnCookie returns the cookie of the daemon's network namespace.
func OwnCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	return unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
}

// First returns a path to the network namespace of the process behind conn, through a process that lives as long as its
// container: the first process of its pid namespace, or else its oldest ancestor in the network namespace.
func First(conn syscall.Conn) (path string, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return "", err
	}
	var cred *unix.Ucred
	cerr := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(cerr, err); err != nil {
		return "", err
	}
	pid := int(cred.Pid)
	if pid == 0 {
		return "", errors.New("the process is not of this daemon's process namespace, nor of one in it")
	}
	err = whileThere(conn, pid, func() (err error) {
		path, err = firstOf(pid)
		return err
	})
	return path, err
}

// nsGetPid is NS_GET_PID_FROM_PIDNS (Linux 6.11): it translates a process ID of another pid namespace.
const nsGetPid = 0x8004b706

func firstOf(pid int) (string, error) {
	at := func(pid int) string { return fmt.Sprintf("/proc/%d/ns/net", pid) }
	name, err := NamespaceAt(at(pid))
	if err != nil {
		return "", err
	}
	same := func(pid int) bool {
		other, err := NamespaceAt(at(pid))
		return err == nil && other == name
	}
	if first := firstIn(pid); first > 0 && same(first) {
		return at(first), nil
	}
	const deep = 64 // enough levels to find a suitable ancestor
	for range deep {
		parent := parentOf(pid)
		if parent <= 0 || !same(parent) {
			break
		}
		pid = parent
	}
	return at(pid), nil
}

// firstIn returns the first process of the pid namespace of a process; 0 if it is the daemon's, or unknown.
func firstIn(pid int) int {
	own, err := os.Stat("/proc/self/ns/pid")
	if err != nil {
		return 0
	}
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/pid", pid))
	if err != nil {
		return 0
	}
	defer f.Close()
	if its, err := f.Stat(); err != nil || os.SameFile(own, its) {
		return 0
	}
	n, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), nsGetPid, 1)
	if errno != 0 {
		return 0
	}
	return int(n)
}

// parentOf returns the parent of a process from /proc; 0 if unknown.
func parentOf(pid int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(text) {
		if rest, is := bytes.CutPrefix(line, []byte("PPid:")); is {
			n, _ := strconv.Atoi(string(bytes.TrimSpace(rest))) // the kernel's
			return n
		}
	}
	return 0
}
