package netns

import (
	"os"

	"golang.org/x/sys/unix"
)

// A SpaceState says what the next daemon must know of a namespace beside its descriptor.
type SpaceState struct {
	Cookie uint64 `cbor:"1,keyasint,omitempty"`
	Helped bool   `cbor:"2,keyasint,omitempty"` // a helper had to create sockets
}

// Freeze returns the state of s and its descriptor, which stays its own.
func (s *Space) Freeze() (SpaceState, int, error) {
	fd, err := descriptorOf(s.file)
	return SpaceState{s.cookie, s.helped.Load()}, fd, err
}

// Thaw makes the Space of another daemon. It takes over the file.
func Thaw(st SpaceState, file *os.File) *Space {
	s := &Space{file: file, cookie: st.Cookie}
	s.helped.Store(st.Helped)
	return s
}

// DuplicateTap returns another descriptor of a tap's file, for the next daemon.
func DuplicateTap(file *os.File) (*os.File, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	cerr := raw.Control(func(of uintptr) { fd, err = unix.FcntlInt(of, unix.F_DUPFD_CLOEXEC, 0) })
	if cerr != nil {
		return nil, cerr
	}
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), file.Name()), nil
}

// descriptorOf returns the descriptor of a file. Unlike File.Fd it leaves the file non-blocking.
func descriptorOf(file *os.File) (fd int, err error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return -1, err
	}
	err = raw.Control(func(of uintptr) { fd = int(of) })
	return fd, err
}
