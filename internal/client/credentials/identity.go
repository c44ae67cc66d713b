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

// An Identity is what we hold of a process that introduced itself: not its number, which
// survives exec and is given to others after its end, but descriptors that stay with what
// they were opened for.
//
// SO_PEERCRED tells who called connect(). Since then the process may have exec'd a setuid
// program, and we, who may be root, can open more than the caller may. So what was opened
// is checked afterwards, by hand:
//
//	connect()            open                check
//	  user ── exec su ──▶ root's memory ──▶ Uid: 0        refused
//	  user ─────────────▶ user's memory ──▶ Uid: user     the descriptor stays with this
//	                                        exec su …      address space, now a dead one
//
// What was privileged when it was opened and passes later has exec'd again, and its memory
// is gone; or it gave its privileges up itself, and then the kernel leaves it undumpable,
// which shows. (Unless root has set fs.suid_dumpable to 1, which lets everybody debug
// setuid programs.)
//
// A client in a user namespace of its own passes where the kernel lets us in: uids are
// compared as we see them, so that a setuid program inside a container is refused too. One
// in a pid namespace that we cannot see into has no number here, and so no foreign memory.
type Identity struct {
	Pidfd  int      // -1: there is none
	Memory *os.File // of the address space; nil: it is not ours to touch, and
	Why    error    // this is why
	// Mappings are those of the address space; nil: they cannot be read.
	Mappings *memory.Mappings
}

// Identify opens what there is of the process behind c.
func Identify(c syscall.Conn, who *Caller) (id Identity) {
	id.Pidfd = openPidfd(c, who)
	id.Memory, id.Mappings, id.Why = openMemory(who)
	// The number may have become another process's while we opened things by it.
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

// openPidfd opens a descriptor that tells when the process ends: of the process that
// connected, or where the kernel is older, of the one that has its number, if it is still
// of the same user.
func openPidfd(c syscall.Conn, who *Caller) int {
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

// openMemory opens the process's memory, and its mappings, and checks that they are the
// caller's own.
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
	maps, _ := memory.OpenMappings(who.Pid, who.UID) // nil: shared memory is foreign
	if err := checkOwner(who); err != nil {
		f.Close()
		if maps != nil {
			maps.Close()
		}
		return nil, nil, err
	}
	return f, maps, nil
}

// checkOwner makes sure that the process is, through and through, of the user who
// connected.
func checkOwner(who *Caller) error {
	if err := checkIDs(who); err != nil {
		return err
	}
	if who.UID == 0 {
		return nil // root owns it either way
	}
	// The files of a process that is not dumpable belong to root. (The directory /proc/PID
	// itself does not: task_dump_owner leaves it out.)
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

// checkIDs makes sure that the process has the ids of the caller and no others.
func checkIDs(who *Caller) error {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", who.Pid))
	if err != nil {
		return err
	}
	defer f.Close()
	return checkStatus(f, who.UID, who.GID)
}

// checkStatus reads /proc/PID/status: real, effective, saved and file system ids have all
// to be those of the caller.
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
