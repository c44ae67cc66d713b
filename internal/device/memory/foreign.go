package memory

import (
	"io"
	"syscall"
)

// Foreign memory is registered memory that the daemon cannot map: stacks, file and shared
// mappings. It is accessed through /proc/PID/mem, opened once, at the hello of the process. The
// descriptor belongs to the address space at that time, not to the process number. After the
// process has exec'd (perhaps a setuid program) or ended, it reads as empty, even if another
// process has the number by then.
//
// A write through it ignores the protection of the pages (FOLL_FORCE), so it can change memory that
// the process itself cannot write. That can harm only the process: it declared the rights to its
// own memory when it registered it. A private page becomes a private copy, as for a debugger. The
// kernel never forces a write to a shared mapping (check_vma_flags), so no file and no other
// process sees one.
//
// Any access may block for as long as the process likes: the page may lie in a file system
// that the process itself serves. So nothing here is called on a loop; see Pool.

// Remote is the memory of a process, at offset = address: an open /proc/PID/mem. Close does not
// wait for reads and writes in progress. The descriptor stays open until they return, as with
// os.File.
type Remote interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
}

// SetForeign gives the process's memory to s, which closes it. It is called before the
// first region is mapped. Without it foreign memory is refused with EPERM.
func (s *Space) SetForeign(f Remote) { s.foreign = f }

// read fills b from addr of the process. EFAULT: there is no memory, or not any more.
func (s *Space) read(addr uint64, b []byte) error { return readFrom(s.foreign, addr, b) }

func readFrom(m Remote, addr uint64, b []byte) error {
	if m == nil {
		return syscall.EPERM
	}
	if _, err := m.ReadAt(b, int64(addr)); err != nil {
		return syscall.EFAULT // EIO, or nothing to read
	}
	return nil
}

// writeTo copies b to addr of a process.
func writeTo(m Remote, addr uint64, b []byte) error {
	if m == nil {
		return syscall.EPERM
	}
	if _, err := m.WriteAt(b, int64(addr)); err != nil {
		return syscall.EFAULT
	}
	return nil
}
