package vmagent

import (
	"sync"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/client/vm/vmproto"
)

// A handle is a socket from which a program reads events, like package eventfile on a host.
type handle struct {
	id     uint32
	client uint32 // its conversation; 0: not known yet
	fd     int    // the agent's end
	peer   int    // a duplicate of the program's end

	mu      sync.Mutex
	backlog [][]byte // guarded by mu: events that did not fit into the socket
	writing bool     // guarded by mu: pump is running
	closed  bool     // guarded by mu
}

// mostBacklog is the maximum number of events that wait for a program that does not read.
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

// post sends an event to the program.
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

// pump sends the backlog as the program reads.
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

// lower withdraws the event that signals that there are others.
func (h *handle) lower() {
	var b [16]byte
	unix.Recvfrom(h.peer, b[:], unix.MSG_DONTWAIT)
}

// empty withdraws all unread events.
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
