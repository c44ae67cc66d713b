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

// A Home is where a process lives: its namespaces and its root directory. A user number
// means little without it, because root of a container has the same number as root of the
// machine; and neither does a process number, because each process namespace has its own.
//
// The root directory stands for the mount namespace. `ip netns exec` and `unshare -m`
// make a mount namespace that has the same root and a mount or two of its own; people run
// daemons and tools in those, and nothing is gained by it. A container has another root
// directory, and to get at ours it would have to leave its own. One that was given the
// machine's root directory, and its process and user namespaces, was given the machine.
type Home struct {
	User, Pid, Net string // what the links in /proc/PID/ns say
	dev, ino       uint64 // of the root directory
	// numbers are the process's: in the daemon's process namespace, and in each one
	// below it down to its own. Only Locate finds them, and Net: it takes long.
	numbers []int

	// The kernel shows the links and the root only to those who could trace the
	// process. A daemon of an ordinary user is not told of root; of that it learns
	// only its numbers, and which user numbers its namespace has.
	partial bool
	users   string
}

// errGone is the error for a process that is no longer there.
var errGone = errors.New("the process that asked is gone")

// HomeOf looks a process up by its number. It is for the caller to make sure that the
// number still means the same process afterwards.
func HomeOf(pid int) (Home, error) {
	if pid <= 0 {
		return Home{}, errors.New("the process is in a pid namespace that this daemon does not see")
	}
	proc := fmt.Sprintf("/proc/%d/", pid)
	var h Home
	var errs [3]error
	h.User, errs[0] = os.Readlink(proc + "ns/user")
	h.Pid, errs[1] = os.Readlink(proc + "ns/pid")
	// DONT_SYNC: a process may live in a file system that it serves itself, which would
	// not have to answer.
	var st unix.Statx_t
	if errs[2] = unix.Statx(unix.AT_FDCWD, proc+"root", unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &st); errs[2] == nil {
		h.dev, h.ino = unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino
	}
	// If only the root is hidden it lies in a file system that does not let us in, a
	// container's own for instance: that is no reason to look at less.
	if !errors.Is(errors.Join(errs[:2]...), os.ErrPermission) {
		return h, errors.Join(errs[:]...)
	}
	return partialHome(proc)
}

// partialHome returns what everybody may know.
func partialHome(proc string) (Home, error) {
	h := Home{partial: true}
	users, err1 := os.ReadFile(proc + "uid_map")
	h.users = strings.Join(strings.Fields(string(users)), " ")
	var err2 error
	h.numbers, err2 = numbersOf(proc)
	return h, errors.Join(err1, err2)
}

// locate finds the process's numbers, and its network.
func (h *Home) locate(pid int) (err error) {
	proc := fmt.Sprintf("/proc/%d/", pid)
	h.Net, _ = os.Readlink(proc + "ns/net") // or we may not know
	if !h.partial {
		h.numbers, err = numbersOf(proc)
	}
	return err
}

// numbersOf reads a process's numbers.
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

// homeOfPeer returns the home of the process that connected. Its number cannot have come to
// mean another process while we looked, if the process is still there afterwards.
func homeOfPeer(u *net.UnixConn, pid int) (Home, error) {
	var h Home
	err := whileThere(u, pid, func() (err error) { h, err = HomeOf(pid); return err })
	if errors.Is(err, errGone) {
		h = Home{}
	}
	return h, err
}

// whileThere runs look, and fails if the process that connected has ended by then.
func whileThere(c syscall.Conn, pid int, look func() error) error {
	fd, err := peerPidfd(c)
	if err != nil && pid > 0 {
		// Before Linux 6.5. If the process ended before this, the number may be
		// somebody else's: there the kernel cannot tell.
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

// Differs says in what the two homes differ; "" if they are one. The network does not
// count: it says nothing about who somebody is.
func (h *Home) Differs(o *Home) string {
	switch {
	case h.partial != o.partial:
		return "home" // one of them is not known well enough
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

// Sees returns the number that a process at home in h has for the one at home in o; 0: it does
// not see it. A process sees what is in its own process namespace, and who is in the
// daemon's sees everything that the daemon does. Of another user's processes an
// unprivileged daemon learns only how deep they are: those that are as deep as it is are in
// its own.
func (h *Home) Sees(o *Home) int {
	switch {
	case len(o.numbers) == 0: // we know nothing of it
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

// A Household is the daemon's own home, as others can be compared with it.
type Household struct {
	Whole, Partial Home
	Err            error // why it is not known
}

// Own is where the daemon lives.
var Own = sync.OnceValue(func() Household {
	var o Household
	var err error
	o.Whole, o.Err = HomeOf(os.Getpid())
	o.Whole.locate(os.Getpid())
	o.Partial, err = partialHome("/proc/self/")
	o.Err = errors.Join(o.Err, err)
	return o
})

// Stranger says in what h differs from the daemon's own home; "" if it does not.
func (o *Household) Stranger(h *Home) string {
	if h.partial {
		return o.Partial.Differs(h)
	}
	return o.Whole.Differs(h)
}
