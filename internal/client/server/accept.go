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

// An entrance is where connections come in.
type endpoint interface {
	// account is whom a connection is charged to, held; nil: nobody.
	account(who *credentials.Caller) *budget.Account
	// converse is what happens on it.
	converse(c *protocol.Conn, who credentials.Caller) error
}

// An acceptor accepts connections at all endpoints, also when the process has no descriptor left.
type acceptor struct {
	srv       *Server
	reserve   reserve
	rejecting chan struct{} // holds one for each connection that is being rejected
}

// accept accepts connections until l is closed; it then returns nil. Who comes when there is
// no descriptor left is told so, for which there is a spare one.
func (a *acceptor) accept(l *net.UnixListener, at endpoint) error {
	var full time.Time // since when there is no descriptor for a connection
	for {
		u, err := l.AcceptUnix()
		switch {
		case err == nil:
			full = time.Time{}
			a.reserve.fill()
			a.srv.serve(u, at)
		case errors.Is(err, net.ErrClosed):
			return nil
		case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ENOMEM):
			if full.IsZero() {
				full = time.Now()
				a.srv.log.Warn("cannot accept a connection: raise the limit of open files (ulimit -n)", "error", err)
			}
			if time.Since(full) < patience {
				time.Sleep(patience / 20) // somebody may close something
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

// patience is how long a connection waits for a descriptor. It is not for ever, because
// those who wait may be those who hold what the others wait for.
const patience = 200 * time.Millisecond

// A reserve is a descriptor that can be given up for a moment. There is one for all entrances.
type reserve struct {
	mu sync.Mutex
	f  *os.File // guarded by mu; nil: others took it when there was none left
}

// fill has a spare descriptor there, if there is one to be had.
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

// admit takes a connection with the descriptor that the reserve had. If there is another for a
// new one, somebody has closed one meanwhile, and there is room to serve the connection.
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

// mostTurned is how many connections are told at one time why they are not served; more
// are closed without a word. Each holds a descriptor until it has spoken, or patience ends.
const mostRejections = 16

// turnAwayBeside turns a connection away without holding up the others.
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

// turnAway says why a connection is not served.
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
