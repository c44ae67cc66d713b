package memory

import (
	"bytes"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// procmapQuery is struct procmap_query of <linux/fs.h>, Linux 6.11.
type procmapQuery struct {
	size, queryFlags, queryAddr          uint64
	start, end, flags, pageSize          uint64
	offset, inode                        uint64
	devMajor, devMinor, nameSize, idSize uint32
	nameAddr, idAddr                     uint64
}

const (
	procmapQueryIoctl = 0xc0686611 // PROCMAP_QUERY
	procmapReadable   = 1
	procmapWritable   = 2
	procmapShared     = 8
)

// queryMapping asks an open /proc/PID/maps for the mapping at addr: ENOENT if there is none,
// ENOTTY from a kernel that cannot tell. The kernel writes to q and name, which stay where
// they are until it has.
func queryMapping(list int, addr uint64) (v mapping, err error) {
	name := make([]byte, 256)
	for size := len(name); ; size = 0 {
		q := procmapQuery{size: uint64(unsafe.Sizeof(procmapQuery{})), queryAddr: addr, nameSize: uint32(size)}
		if size > 0 {
			q.nameAddr = uint64(uintptr(unsafe.Pointer(&name[0])))
		}
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(list), procmapQueryIoctl, uintptr(unsafe.Pointer(&q)))
		runtime.KeepAlive(name)
		if errno == unix.ENAMETOOLONG && size > 0 {
			continue
		}
		if errno == unix.EINVAL {
			errno = unix.ENOTTY
		}
		if errno != 0 {
			return v, syscall.Errno(errno)
		}
		v = mapping{start: q.start, end: q.end, offset: q.offset, ino: q.inode, device: unix.Mkdev(q.devMajor, q.devMinor), shared: q.flags&procmapShared != 0}
		if q.flags&procmapReadable != 0 {
			v.prot |= ProtRead
		}
		if q.flags&procmapWritable != 0 {
			v.prot |= ProtWrite
		}
		if n := bytes.IndexByte(name, 0); n > 0 && q.nameSize > 0 && size > 0 {
			v.name = string(name[:n])
		}
		return v, nil
	}
}

// addressOf is where mem lies in the daemon.
func addressOf(mem []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) }

// mincore says which pages of mem are in memory: one byte of resident for each. mem begins at a
// page border.
func mincore(mem, resident []byte) error {
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(unsafe.SliceData(mem))), uintptr(len(mem)), uintptr(unsafe.Pointer(unsafe.SliceData(resident))))
	if errno != 0 {
		return errno
	}
	return nil
}
