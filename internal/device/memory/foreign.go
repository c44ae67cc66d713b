package memory

import (
	"io"
	"syscall"
)

// Foreign memory is what a process has registered and we cannot map: stacks, file and
// shared mappings. It is reached through /proc/PID/mem, opened once, when the process
// introduced itself. The descriptor belongs to the address space of that moment and not to
// the process number: after the process has exec'd (perhaps a setuid program) or ended, it
// reads as empty, whoever has the number by then.
//
// A write through it ignores the protection of the pages (FOLL_FORCE), so memory that the
// process itself cannot write could be written. That harms nobody but the process: what it
// may write is what it said of its own memory when it registered it, a private page becomes
// a private copy as for a debugger, and the kernel never forces a write to a shared mapping
// (check_vma_flags), so no file or other process sees one.
//
// Any access may block for as long as the process likes: the page may lie in a file system
// that the process itself serves. So nothing here is called on a loop; see Pool.

// Remote is the memory of a process, at offset = address: an open /proc/PID/mem. Closing it
// does not wait for those who read and write, and what they use stays theirs until they are
// back (which is how os.File does it).
type Remote interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
}

// SetForeign gives the process's memory to s, which closes it. It is called before the
// first region is mapped. Without it foreign memory is refused with EPERM.
func (s *Space) SetForeign(f Remote) { s.foreign = f }

// read fills b from addr of the process. EFAULT: there is no memory, any more.
func (s *Space) read(addr uint64, b []byte) error {
	if s.foreign == nil {
		return syscall.EPERM
	}
	if _, err := s.foreign.ReadAt(b, int64(addr)); err != nil {
		return syscall.EFAULT // EIO, or nothing to read
	}
	return nil
}

// write copies b to addr of the process.
func (s *Space) write(addr uint64, b []byte) error {
	if s.foreign == nil {
		return syscall.EPERM
	}
	if _, err := s.foreign.WriteAt(b, int64(addr)); err != nil {
		return syscall.EFAULT
	}
	return nil
}
