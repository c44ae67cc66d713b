package vmagent

import (
	"sync"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/client/vm/vmproto"
)

// A handle is a socket that a program reads events from: package eventfile, in the machine.
type handle struct {
	id     uint32
	client uint32 // the conversation that it is of; 0: not known yet
	fd     int    // our end
	peer   int    // the program's, once more

	mu      sync.Mutex
	backlog [][]byte // guarded by mu: for which there was no room
	writing bool     // guarded by mu: somebody waits for room
	closed  bool     // guarded by mu
}

// mostBacklog is how many events wait for a program that does not read.
const mostBacklog = 1 << 16

func newHandle(id uint32) (*handle, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	unix.SetNonblock(fds[0], true)
	unix.Shutdown(fds[0], unix.SHUT_RD)
	return &handle{id: id, fd: fds[0], peer: fds[1]}, nil
}

// post hands an event over.
func (h *handle) post(e []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	if len(h.backlog) == 0 {
		if _, err := unix.Write(h.fd, e); err != unix.EAGAIN {
			return
		}
	}
	if len(h.backlog) < mostBacklog {
		h.backlog = append(h.backlog, append([]byte(nil), e...))
	}
	if !h.writing {
		h.writing = true
		go h.pump()
	}
}

// pump hands the backlog over as the program reads.
func (h *handle) pump() {
	for {
		h.mu.Lock()
		for len(h.backlog) > 0 && !h.closed {
			if _, err := unix.Write(h.fd, h.backlog[0]); err == unix.EAGAIN {
				break
			}
			h.backlog = h.backlog[1:]
		}
		if len(h.backlog) == 0 || h.closed {
			h.writing, h.backlog = false, nil
			h.mu.Unlock()
			return
		}
		fd, err := unix.FcntlInt(uintptr(h.fd), unix.F_DUPFD_CLOEXEC, 0)
		h.mu.Unlock()
		if err == nil {
			unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 100)
			unix.Close(fd)
		}
	}
}

// lower takes one back that stands for many.
func (h *handle) lower() {
	var b [16]byte
	unix.Recvfrom(h.peer, b[:], unix.MSG_DONTWAIT)
}

// empty takes back all that the program has not read.
func (h *handle) empty() (out []vmproto.Returning) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for !h.closed {
		r := vmproto.Returning{Handle: h.id}
		n, _, err := unix.Recvfrom(h.peer, r.Event[:], unix.MSG_DONTWAIT)
		if err != nil || n <= 0 {
			break
		}
		r.N = n
		out = append(out, r)
	}
	for _, e := range h.backlog {
		r := vmproto.Returning{Handle: h.id}
		r.N = copy(r.Event[:], e)
		out = append(out, r)
	}
	h.backlog = nil
	return out
}

func (h *handle) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.closed = true
		unix.Close(h.fd)
		unix.Close(h.peer)
	}
}
