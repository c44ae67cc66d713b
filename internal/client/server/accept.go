package server

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/protocol"
)

// An endpoint is a socket at which connections arrive.
type endpoint interface {
	// account is the account of a caller, held; nil: it has none.
	account(who *credentials.Caller) *budget.Account
	// converse serves a connection.
	converse(c *protocol.Conn, who credentials.Caller) error
}

// An acceptor accepts connections at all endpoints, also when the process has no descriptor left.
type acceptor struct {
	srv       *Server
	reserve   reserve
	rejecting chan struct{} // holds one for each connection that is being rejected
}

// accept accepts connections until l is closed, and then returns nil. When no descriptor is left it uses a reserved one
// to tell the client so.
func (a *acceptor) accept(l *net.UnixListener, at endpoint) error {
	var full time.Time // since when descriptors have been missing
	g := &a.srv.gate
	g.Enter()
	defer g.Leave()
	for {
		u, err := l.AcceptUnix()
		switch {
		case err == nil:
			full = time.Time{}
			a.reserve.fill()
			a.srv.serve(u, at)
		case errors.Is(err, net.ErrClosed):
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded) && g.Closing():
			g.Outside(g.AwaitOpen)
		case errors.Is(err, os.ErrDeadlineExceeded):
			l.SetDeadline(time.Time{}) // the gate has just opened, and Frozen.unpause is about to do the same
		case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ENOMEM):
			if full.IsZero() {
				full = time.Now()
				a.srv.log.Warn("cannot accept a connection: raise the limit of open files (ulimit -n)", "error", err)
			}
			if time.Since(full) < patience {
				time.Sleep(patience / 20) // a descriptor may become free
				continue
			}
			if a.admit(l, at, err) {
				full = time.Time{}
			}
		default:
			return fmt.Errorf("accept on %s: %w", l.Addr(), err)
		}
	}
}

// patience is how long a connection waits for a descriptor. The wait is bounded because clients that wait may hold the
// descriptors that others wait for.
const patience = 200 * time.Millisecond

// A reserve is a spare descriptor that is given up for a moment. All endpoints share one.
type reserve struct {
	mu sync.Mutex
	f  *os.File // guarded by mu; nil: other code took the last descriptor
}

// fill opens the spare descriptor, if possible.
func (r *reserve) fill() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refill()
}

func (r *reserve) refill() bool {
	if r.f == nil {
		r.f, _ = os.Open(os.DevNull)
	}
	return r.f != nil
}

func (r *reserve) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.f.Close()
	r.f = nil
}

// admit accepts a connection with the reserved descriptor. If the reserve can be filled again, a descriptor has become
// free meanwhile, and admit serves the connection.
func (a *acceptor) admit(l *net.UnixListener, at endpoint, why error) (room bool) {
	r := &a.reserve
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.refill()
	r.f.Close()
	r.f = nil
	l.SetDeadline(time.Now().Add(patience / 20))
	defer l.SetDeadline(time.Time{})
	u, err := l.AcceptUnix()
	if err != nil {
		time.Sleep(patience / 20)
		return false
	}
	if r.refill() {
		a.srv.serve(u, at)
		return true
	}
	reject(u, refusal(protocol.Errno(why, syscall.EMFILE), "the daemon has no descriptor left: %v; raise its limit of open files (ulimit -n)", why))
	return false
}

// mostRejections is how many clients are told at the same time why they are not served. Further connections are closed
// without a message. Each holds a descriptor until the client has sent its hello, or for patience.
const mostRejections = 16

// rejectAside rejects a connection without delaying others.
func (a *acceptor) rejectAside(u *net.UnixConn, why error) {
	select {
	case a.rejecting <- struct{}{}:
	default:
		u.Close()
		return
	}
	go func() {
		defer func() { <-a.rejecting }()
		reject(u, why)
	}()
}

// reject tells a client why its connection is not served.
func reject(u *net.UnixConn, why error) {
	defer u.Close()
	c := protocol.NewConn(u)
	c.SetDeadline(time.Now().Add(patience))
	var hello [1024]byte
	if _, fds, err := c.ReadMessage(hello[:]); err == nil {
		protocol.CloseFDs(fds)
	}
	refuse(c, why)
}
