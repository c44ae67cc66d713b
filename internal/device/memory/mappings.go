package memory

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// Mappings are the mappings of a process, as the kernel lists them. The list is opened at the hello
// of the process, and belongs to the address space at that time, as an open /proc/PID/mem does. The
// files behind mappings can only be opened by process number, so same has to be called afterwards.
// A process never returns to an address space that it left. So if the address space is the same
// now, it was the same when the file was opened.
type Mappings struct {
	pid  int
	list *os.File // /proc/PID/maps
	auxv []byte   // of the address space: exec puts it at random addresses
	uid  int
	text atomic.Bool // the kernel has no PROCMAP_QUERY
}

// OpenMappings opens the mappings of a process of a user. The caller checks afterwards that
// the process is the one that it means.
func OpenMappings(pid, uid int) (*Mappings, error) {
	list, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, err
	}
	m := &Mappings{pid: pid, list: list, uid: uid}
	if m.auxv, err = m.readAuxv(); err != nil {
		list.Close()
		return nil, err
	}
	return m, nil
}

// Close closes the list.
func (m *Mappings) Close() error { return m.list.Close() }

func (m *Mappings) readAuxv() ([]byte, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/auxv", m.pid))
	if err == nil && len(b) == 0 {
		err = syscall.ESRCH
	}
	return b, err
}

// same reports whether the process still has the address space that m is of. The auxiliary
// vector tells: the kernel chooses its addresses at random at every exec, and it names the
// user and group of the program.
func (m *Mappings) same() bool {
	now, err := m.readAuxv()
	return err == nil && bytes.Equal(now, m.auxv)
}

// A mapping is one of a process.
type mapping struct {
	start, end  uint64
	offset      uint64 // in the file
	device, ino uint64
	prot        uint8 // ProtRead, ProtWrite
	shared      bool
	name        string
}

// sysv reports whether it is a segment of System V shared memory. Its inode has the number of
// the segment, which other files of the same device may have too.
func (v *mapping) sysv() bool { return strings.HasPrefix(v.name, "/SYSV") }

// find returns the mapping at addr.
func (m *Mappings) find(addr uint64) (mapping, error) {
	if !m.text.Load() {
		v, err := queryMapping(int(m.list.Fd()), addr)
		if err != syscall.ENOTTY {
			return v, err
		}
		m.text.Store(true) // before Linux 6.11
	}
	return findLine(io.NewSectionReader(m.list, 0, 1<<62), addr)
}

// findLine finds the mapping at addr in the text of /proc/PID/maps, which is sorted. A process can have 65 530 mappings, so only
// the line of the mapping is parsed in full, and no line behind it is read.
func findLine(maps io.Reader, addr uint64) (mapping, error) {
	for s := bufio.NewScanner(maps); s.Scan(); {
		line := s.Bytes()
		start, line := hex(line)
		if start > addr || len(line) == 0 {
			break
		}
		if end, _ := hex(line[1:]); addr < end {
			if v, ok := parseMapping(s.Text()); ok {
				return v, nil
			}
		}
	}
	return mapping{}, syscall.ENOENT
}

// hex parses the hexadecimal number at the beginning of a text, and returns the rest.
func hex(b []byte) (n uint64, rest []byte) {
	for i, c := range b {
		switch {
		case c >= '0' && c <= '9':
			n = n<<4 | uint64(c-'0')
		case c >= 'a' && c <= 'f':
			n = n<<4 | uint64(c-'a'+10)
		default:
			return n, b[i:]
		}
	}
	return n, nil
}

// parseMapping reads a line of /proc/PID/maps.
func parseMapping(line string) (v mapping, ok bool) {
	var flags string
	var major, minor uint32
	n, _ := fmt.Sscanf(line, "%x-%x %s %x %x:%x %d %s", &v.start, &v.end, &flags, &v.offset, &major, &minor, &v.ino, &v.name)
	if n < 7 || len(flags) != 4 {
		return v, false
	}
	v.device = unix.Mkdev(major, minor)
	v.shared = flags[3] == 's'
	if flags[0] == 'r' {
		v.prot |= ProtRead
	}
	if flags[1] == 'w' {
		v.prot |= ProtWrite
	}
	return v, true
}

// open opens the file behind v, writable if v is: fd, if it is not negative, is a descriptor
// that the process has of it. What comes back is a regular file of a file system that keeps
// its files in memory, with v's number. The caller asks same.
//
//	              root's daemon            an ordinary user's
//	SysV          /proc/PID/map_files      shmat
//	other         /proc/PID/map_files      the process's descriptor (pidfd_getfd)
//
// It may take as long as the process likes: opening and closing a file that the process
// provides itself (FUSE) asks the process.
func (m *Mappings) open(v *mapping, fd int) (*SharedFile, error) {
	f, err := m.openLink(v)
	if (err == unix.EPERM || err == unix.EACCES) && v.sysv() {
		return m.attach(v)
	}
	if (err == unix.EPERM || err == unix.EACCES) && fd >= 0 {
		f, err = m.take(fd)
	}
	if err != nil {
		return nil, err
	}
	s, err := newSharedFile(f, v)
	if err != nil {
		unix.Close(f)
	}
	return s, err
}

// openLink opens the file behind v by its link in map_files, which is for root only. It is
// opened as a path first: to open a device may do something.
func (m *Mappings) openLink(v *mapping) (int, error) {
	link := fmt.Sprintf("/proc/%d/map_files/%x-%x", m.pid, v.start, v.end)
	path, err := unix.Open(link, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(path)
	if err := inMemory(path, v); err != nil {
		return -1, err
	}
	how := unix.O_RDONLY
	if v.prot&ProtWrite != 0 {
		how = unix.O_RDWR
	}
	return unix.Open(fmt.Sprintf("/proc/self/fd/%d", path), how|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
}

// take takes a copy of a descriptor of the process.
func (m *Mappings) take(fd int) (int, error) {
	p, err := unix.PidfdOpen(m.pid, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(p)
	return unix.PidfdGetfd(p, fd, 0)
}

// attach attaches the segment of System V shared memory behind v. Segment numbers belong to an IPC
// namespace, so the process must be in the daemon's. It must also have the daemon's user ID, so
// that the daemon can attach exactly what the process can.
func (m *Mappings) attach(v *mapping) (*SharedFile, error) {
	var mine, its unix.Stat_t
	if err := unix.Stat("/proc/self/ns/ipc", &mine); err != nil {
		return nil, err
	}
	if err := unix.Stat(fmt.Sprintf("/proc/%d/ns/ipc", m.pid), &its); err != nil {
		return nil, err
	}
	if mine.Ino != its.Ino || mine.Dev != its.Dev || m.uid != os.Geteuid() || v.ino > 1<<31-1 {
		return nil, syscall.EPERM
	}
	flags := unix.SHM_RDONLY
	if v.prot&ProtWrite != 0 {
		flags = 0
	}
	mem, err := unix.SysvShmAttach(int(v.ino), 0, flags)
	if err != nil {
		return nil, err
	}
	self, err := os.Open("/proc/self/maps")
	if err == nil {
		defer self.Close()
		var got mapping
		got, err = (&Mappings{list: self}).find(addressOf(mem))
		if err == nil && (got.ino != v.ino || got.device != v.device || got.name != v.name) {
			err = syscall.ESTALE
		}
	}
	if err != nil {
		unix.SysvShmDetach(mem)
		return nil, err
	}
	return &SharedFile{id: fileID{device: v.device, ino: v.ino, sysv: true}, segment: pageSpan(mem, 0), name: v.name, file: -1, writable: flags == 0}, nil
}

// NeedsDescriptors reports whether the daemon may not open the files behind mappings of other
// processes, so that those have to offer descriptors.
func NeedsDescriptors() bool {
	mem, err := unix.Mmap(-1, 0, pageSize, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		return true
	}
	defer unix.Munmap(mem)
	at := addressOf(mem)
	fd, err := unix.Open(fmt.Sprintf("/proc/self/map_files/%x-%x", at, at+pageSize), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return true
	}
	unix.Close(fd)
	return false
}
