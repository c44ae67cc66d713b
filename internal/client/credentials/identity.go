package credentials

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/device/memory"
)

// An Identity identifies a process by descriptors that stay with what they were opened for. A process ID would survive exec and
// be reused after the process has ended.
//
// SO_PEERCRED identifies the process that called connect(). Since then it may have executed a setuid program, and a daemon of
// root can open more than the caller may. So the daemon checks what it opened:
//
//	connect()            open                check
//	  user ── exec su ──▶ root's memory ──▶ Uid: 0        refused
//	  user ─────────────▶ user's memory ──▶ Uid: user     the descriptor stays with this
//	                                        exec su …      address space, now a dead one
//
// A process that was privileged at the open and passes the check later has executed another program, so that its old memory is
// gone. Or it has dropped its privileges, and then the kernel keeps it undumpable, which the check sees. (Unless root has set
// fs.suid_dumpable to 1, which lets every user debug setuid programs.)
//
// A client in its own user namespace passes if the kernel admits the daemon. User IDs are compared as the daemon sees them, so a
// setuid program in a container is refused too. A client in a pid namespace that the daemon cannot see has no process ID here,
// and so no foreign memory.
type Identity struct {
	Pidfd  int      // -1: none
	Memory *os.File // memory of the address space; nil: not accessible, and
	Why    error    // the reason
	// Mappings are the mappings of the address space; nil: not readable.
	Mappings *memory.Mappings
}

// Identify opens the descriptors of the process behind c.
func Identify(c syscall.Conn, who *Caller) (id Identity) {
	id.Pidfd = Pidfd(c, who)
	id.Memory, id.Mappings, id.Why = openMemory(who)
	// The process ID may have been reused in the meantime.
	if id.Memory != nil && id.Pidfd >= 0 && exited(id.Pidfd) {
		id.Memory.Close()
		if id.Mappings != nil {
			id.Mappings.Close()
			id.Mappings = nil
		}
		id.Memory, id.Why = nil, errors.New("the process has ended")
	}
	return id
}

// Pidfd returns a descriptor that reports the end of the process: of the connected process, or on an older kernel of the
// process with its ID, if it still has the same user. -1: there is none.
func Pidfd(c syscall.Conn, who *Caller) int {
	if fd, err := peerPidfd(c); err == nil {
		return fd
	}
	if who.Pid <= 0 {
		return -1
	}
	fd, err := unix.PidfdOpen(who.Pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return -1
	}
	if checkIDs(who) != nil {
		unix.Close(fd)
		return -1
	}
	return fd
}

// exited reports whether the process behind a pidfd has ended.
func exited(pidfd int) bool { return protocol.Ready(pidfd) }

// openMemory opens the process's memory and mappings, and checks that they belong to the caller.
func openMemory(who *Caller) (*os.File, *memory.Mappings, error) {
	if who.Pid <= 0 {
		return nil, nil, errors.New("it is in a pid namespace that the daemon cannot see into")
	}
	if self, err := os.Readlink("/proc/self"); err != nil || self != strconv.Itoa(os.Getpid()) {
		return nil, nil, errors.New("/proc in the daemon's mount namespace is that of another pid namespace")
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/mem", who.Pid), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("the kernel does not let the daemon (uid %d) into memory of uid %d: %w", os.Geteuid(), who.UID, err)
	}
	f := os.NewFile(uintptr(fd), "foreign memory")
	maps, _ := memory.OpenMappings(who.Pid, who.UID) // without mappings, shared memory is treated as foreign
	if err := checkOwner(who); err != nil {
		f.Close()
		if maps != nil {
			maps.Close()
		}
		return nil, nil, err
	}
	return f, maps, nil
}

// checkOwner checks that all IDs and files of the process belong to the connected user.
func checkOwner(who *Caller) error {
	if err := checkIDs(who); err != nil {
		return err
	}
	if who.UID == 0 {
		return nil // root owns the files in any case
	}
	// The files of an undumpable process belong to root, except for the directory /proc/PID itself (task_dump_owner).
	path := fmt.Sprintf("/proc/%d/mem", who.Pid)
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if int(st.Uid) != who.UID {
		return fmt.Errorf("it may not be debugged: %s belongs to uid %d, not %d (see PR_SET_DUMPABLE in prctl(2))", path, st.Uid, who.UID)
	}
	return nil
}

// checkIDs checks that the process has only the caller's IDs.
func checkIDs(who *Caller) error {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", who.Pid))
	if err != nil {
		return err
	}
	defer f.Close()
	return checkStatus(f, who.UID, who.GID)
}

// checkStatus parses /proc/PID/status: real, effective, saved and file system IDs must all be the caller's.
func checkStatus(r io.Reader, uid, gid int) error {
	want := map[string]int{"Uid:": uid, "Gid:": gid}
	lines := bufio.NewScanner(r)
	for len(want) > 0 && lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) == 0 {
			continue
		}
		id, ok := want[f[0]]
		if !ok {
			continue
		}
		if len(f) != 5 {
			return fmt.Errorf("status says %q, want four ids", lines.Text())
		}
		for _, s := range f[1:] {
			if s != strconv.Itoa(id) {
				return fmt.Errorf("it connected as %s %d and is now %q", strings.ToLower(f[0]), id, lines.Text())
			}
		}
		delete(want, f[0])
	}
	if len(want) > 0 {
		return errors.Join(errors.New("the process's status does not show its ids"), lines.Err())
	}
	return nil
}
