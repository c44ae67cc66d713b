package credentials

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// A Home is the environment of a process: its namespaces and its root directory. A user number means little without it, because
// root in a container has the same number as root of the machine. The same holds for process numbers, because each pid namespace
// has its own.
//
// The root directory stands for the mount namespace. `ip netns exec` and `unshare -m` create a mount namespace with the same root
// and a few mounts; daemons and tools run in those without any gain in privileges. A container has another root directory and
// cannot reach the machine's. A container that was given the machine's root directory, pid and user namespaces was given the
// machine.
type Home struct {
	User, Pid, Net string // targets of the links in /proc/PID/ns
	dev, ino       uint64 // of the root directory
	// numbers are the process IDs in the daemon's pid namespace and in each one below it, down to its own. Only Locate sets them
	// and Net, because that is slow.
	numbers []int

	// The kernel shows the links and the root only to processes that could trace the process. For root's processes, the daemon of
	// an ordinary user sees only the process IDs and the range of user numbers.
	partial bool
	users   string
}

// errGone is the error for a process that has ended.
var errGone = errors.New("the process that asked is gone")

// HomeOf returns the Home of a process ID. The caller must check afterwards that the ID still means the same process.
func HomeOf(pid int) (Home, error) {
	if pid <= 0 {
		return Home{}, errors.New("the process is in a pid namespace that this daemon does not see")
	}
	proc := fmt.Sprintf("/proc/%d/", pid)
	var h Home
	var errs [3]error
	h.User, errs[0] = os.Readlink(proc + "ns/user")
	h.Pid, errs[1] = os.Readlink(proc + "ns/pid")
	// DONT_SYNC: a process may have its root in a file system that it serves itself and that need not answer.
	var st unix.Statx_t
	if errs[2] = unix.Statx(unix.AT_FDCWD, proc+"root", unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &st); errs[2] == nil {
		h.dev, h.ino = unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino
	}
	// If only the root is hidden, it lies in a file system that does not admit the daemon, such as a container's: the links still count.
	if !errors.Is(errors.Join(errs[:2]...), os.ErrPermission) {
		return h, errors.Join(errs[:]...)
	}
	return partialHome(proc)
}

// partialHome returns what every process may read.
func partialHome(proc string) (Home, error) {
	h := Home{partial: true}
	users, err1 := os.ReadFile(proc + "uid_map")
	h.users = strings.Join(strings.Fields(string(users)), " ")
	var err2 error
	h.numbers, err2 = numbersOf(proc)
	return h, errors.Join(err1, err2)
}

// locate sets the process IDs and the network namespace.
func (h *Home) locate(pid int) (err error) {
	proc := fmt.Sprintf("/proc/%d/", pid)
	h.Net, _ = os.Readlink(proc + "ns/net") // may be hidden
	if !h.partial {
		h.numbers, err = numbersOf(proc)
	}
	return err
}

// numbersOf reads the process IDs of a process.
func numbersOf(proc string) ([]int, error) {
	status, err := os.ReadFile(proc + "status")
	if err != nil {
		return nil, err
	}
	return parseNumbers(status)
}

func parseNumbers(status []byte) (out []int, err error) {
	for line := range bytes.Lines(status) {
		rest, ok := bytes.CutPrefix(line, []byte("NSpid:"))
		if !ok {
			continue
		}
		for _, f := range bytes.Fields(rest) {
			n, err := strconv.Atoi(string(f))
			if err != nil {
				return nil, err
			}
			out = append(out, n)
		}
	}
	return out, nil
}

// homeOfPeer returns the Home of the connected process. The process ID cannot have been reused meanwhile if the process still
// exists afterwards.
func homeOfPeer(u *net.UnixConn, pid int) (Home, error) {
	var h Home
	err := whileThere(u, pid, func() (err error) { h, err = HomeOf(pid); return err })
	if errors.Is(err, errGone) {
		h = Home{}
	}
	return h, err
}

// whileThere runs look, and fails if the connected process has ended by then.
func whileThere(c syscall.Conn, pid int, look func() error) error {
	fd, err := peerPidfd(c)
	if err != nil && pid > 0 {
		// Before Linux 6.5. If the process ended before this, the ID may belong to another process: the kernel cannot tell.
		fd, err = unix.PidfdOpen(pid, 0)
	}
	if err != nil {
		if errors.Is(err, syscall.ESRCH) {
			return errGone
		}
		return err
	}
	defer unix.Close(fd)
	err = look()
	if protocol.Ready(fd) { // a pidfd is readable when its process has ended
		return errGone
	}
	return err
}

// Differs returns in what the two homes differ; "" if they are equal. The network namespace does not count, because it does not
// identify a user.
func (h *Home) Differs(o *Home) string {
	switch {
	case h.partial != o.partial:
		return "home" // one of them is only partially known
	case h.partial && len(h.numbers) != len(o.numbers):
		return "pid namespace"
	case h.partial && h.users != o.users:
		return "user namespace"
	case h.partial:
		return ""
	case h.User != o.User:
		return "user namespace"
	case h.Pid != o.Pid:
		return "pid namespace"
	case h.dev != o.dev || h.ino != o.ino:
		return "root directory"
	}
	return ""
}

// Sees returns the process ID that a process with home h sees for one with home o; 0 if it does not see it. A process sees its
// own pid namespace, and a process in the daemon's pid namespace sees everything that the daemon sees. For other users'
// processes, an unprivileged daemon knows only the nesting depth: processes at its own depth are in its namespace.
func (h *Home) Sees(o *Home) int {
	switch {
	case len(o.numbers) == 0: // nothing is known about it
		return 0
	case h.partial || o.partial:
		if len(h.numbers) == 1 && len(o.numbers) == 1 {
			return o.numbers[0]
		}
		return 0
	case h.Pid == o.Pid:
		return o.numbers[len(o.numbers)-1]
	case h.Pid == Own().Whole.Pid:
		return o.numbers[0]
	}
	return 0
}

// A Household is the daemon's own Home, for comparisons.
type Household struct {
	Whole, Partial Home
	Err            error // why it is unknown
}

// Own returns the daemon's own Home.
var Own = sync.OnceValue(func() Household {
	var o Household
	var err error
	o.Whole, o.Err = HomeOf(os.Getpid())
	o.Whole.locate(os.Getpid())
	o.Partial, err = partialHome("/proc/self/")
	o.Err = errors.Join(o.Err, err)
	return o
})

// Beside reports whether h differs from the daemon's own Home in the root directory only: a container of this machine that shares its
// user and pid namespaces.
func (o *Household) Beside(h *Home) bool {
	return o.Err == nil && !h.partial && o.Whole.User == h.User && o.Whole.Pid == h.Pid && o.Stranger(h) != ""
}

// Stranger returns in what h differs from the daemon's own Home; "" if it does not.
func (o *Household) Stranger(h *Home) string {
	if h.partial {
		return o.Partial.Differs(h)
	}
	return o.Whole.Differs(h)
}
