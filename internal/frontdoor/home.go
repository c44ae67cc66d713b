package frontdoor

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"vrdma/internal/channel"
)

// A home is where a process lives: its user and process namespaces and its root
// directory. A user number means little without it, because root of a container has the
// same number as root of the machine.
//
// The root directory stands for the mount namespace. `ip netns exec` and `unshare -m`
// make a mount namespace that has the same root and a mount or two of its own; people run
// daemons and tools in those, and nothing is gained by it. A container has another root
// directory, and to get at ours it would have to leave its own. One that was given the
// machine's root directory, and its process and user namespaces, was given the machine.
type home struct {
	user, pid string // what the links in /proc/PID/ns say
	dev, ino  uint64 // of the root directory

	// The kernel shows the links and the root only to those who could trace the
	// process. A daemon of an ordinary user is not told of root; of that it learns
	// only how many process namespaces the process is below ours, and which
	// user numbers its namespace has.
	partial bool
	depth   int
	users   string
}

// errHome is what a process that is no longer there answers.
var errHome = errors.New("the process that asked is gone")

// homeOf looks a process up by its number. It is for the caller to make sure that the
// number still means the same process afterwards.
func homeOf(pid int) (home, error) {
	if pid <= 0 {
		return home{}, errors.New("the process is in a pid namespace that this daemon does not see")
	}
	var h home
	proc := fmt.Sprintf("/proc/%d/", pid)
	var err1, err2, err3 error
	h.user, err1 = os.Readlink(proc + "ns/user")
	h.pid, err2 = os.Readlink(proc + "ns/pid")
	// DONT_SYNC: a process may live in a file system that it serves itself, which would
	// not have to answer.
	var st unix.Statx_t
	if err3 = unix.Statx(unix.AT_FDCWD, proc+"root", unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &st); err3 == nil {
		h.dev, h.ino = unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino
	}
	// If only the root is hidden it lies in a file system that does not let us in, a
	// container's own for instance: that is no reason to look at less.
	if !errors.Is(errors.Join(err1, err2), os.ErrPermission) {
		return h, errors.Join(err1, err2, err3)
	}
	return partialHome(proc)
}

// partialHome is what everybody may know.
func partialHome(proc string) (home, error) {
	h := home{partial: true}
	users, err1 := os.ReadFile(proc + "uid_map")
	status, err2 := os.ReadFile(proc + "status")
	if err := errors.Join(err1, err2); err != nil {
		return h, err
	}
	h.users = strings.Join(strings.Fields(string(users)), " ")
	for line := range bytes.Lines(status) {
		if rest, ok := bytes.CutPrefix(line, []byte("NSpid:")); ok {
			h.depth = len(bytes.Fields(rest))
		}
	}
	return h, nil
}

// homeOfPeer is the home of the process that connected. Its number cannot have come to
// mean another process while we looked, if the process is still there afterwards.
func homeOfPeer(u *net.UnixConn, pid int) (home, error) {
	fd, err := peerPidfd(channel.NewConn(u))
	if err != nil && pid > 0 {
		// Before Linux 6.5. If the process ended before this, the number may be
		// somebody else's: there the kernel cannot tell.
		fd, err = unix.PidfdOpen(pid, 0)
	}
	if err != nil {
		if errors.Is(err, syscall.ESRCH) {
			return home{}, errHome
		}
		return home{}, err
	}
	defer unix.Close(fd)
	h, err := homeOf(pid)
	if ready(fd) { // a pidfd is readable when its process has ended
		return home{}, errHome
	}
	return h, err
}

// differs says in what the two homes differ; "" if they are one.
func (h *home) differs(o *home) string {
	switch {
	case h.partial != o.partial:
		return "home" // one of them is not known well enough
	case h.partial && h.depth != o.depth:
		return "pid namespace"
	case h.partial && h.users != o.users:
		return "user namespace"
	case h.partial:
		return ""
	case h.user != o.user:
		return "user namespace"
	case h.pid != o.pid:
		return "pid namespace"
	case h.dev != o.dev || h.ino != o.ino:
		return "root directory"
	}
	return ""
}

// A household is the daemon's own home, as others can be compared with it.
type household struct {
	whole, partial home
	err            error // why it is not known
}

func ownHome() household {
	var o household
	var err error
	o.whole, o.err = homeOf(os.Getpid())
	o.partial, err = partialHome("/proc/self/")
	o.err = errors.Join(o.err, err)
	return o
}

// stranger says in what h differs from the daemon's own home.
func (o *household) stranger(h *home) string {
	if h.partial {
		return o.partial.differs(h)
	}
	return o.whole.differs(h)
}
