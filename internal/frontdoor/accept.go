package frontdoor

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"vrdma/internal/protocol"
)

// accept accepts connections until l is closed; it then returns nil. Who comes when there is
// no descriptor left is told so, for which there is a spare one.
func (s *Server) accept(l *net.UnixListener, converse conversation) error {
	spare := newSpare()
	defer func() { spare.Close() }()
	var full time.Time // since when there is no descriptor for a connection
	for {
		u, err := l.AcceptUnix()
		switch {
		case err == nil:
			full = time.Time{}
			if spare == nil { // others took it when there was none left
				spare = newSpare()
			}
			s.serve(u, converse)
		case errors.Is(err, net.ErrClosed):
			return nil
		case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ENOMEM):
			if full.IsZero() {
				full = time.Now()
				s.log.Warn("cannot accept a connection: raise the limit of open files (ulimit -n)", "error", err)
			}
			if time.Since(full) < patience {
				time.Sleep(patience / 20) // somebody may close something
				continue
			}
			spare.Close()
			var room bool
			if spare, room = s.admit(l, converse, err); room {
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

// newSpare is a descriptor that can be given up for a moment; nil if there is none.
func newSpare() *os.File {
	f, _ := os.Open(os.DevNull)
	return f
}

// admit takes a connection with the descriptor that the spare had. If there is another for a
// new spare, somebody has closed one meanwhile, and there is room to serve the connection.
func (s *Server) admit(l *net.UnixListener, converse conversation, why error) (spare *os.File, room bool) {
	l.SetDeadline(time.Now().Add(patience / 20))
	defer l.SetDeadline(time.Time{})
	u, err := l.AcceptUnix()
	if err != nil {
		time.Sleep(patience / 20)
		return newSpare(), false
	}
	if spare = newSpare(); spare != nil {
		s.serve(u, converse)
		return spare, true
	}
	turnAway(u, refusal(protocol.Errno(why, syscall.EMFILE), "the daemon has no descriptor left: %v; raise its limit of open files (ulimit -n)", why))
	return newSpare(), false
}

// mostTurned is how many connections are told at one time why they are not served; more
// are closed without a word. Each holds a descriptor until it has spoken, or patience ends.
const mostTurned = 16

// turnAwayBeside turns a connection away without holding up the others.
func (s *Server) turnAwayBeside(u *net.UnixConn, why error) {
	select {
	case s.turning <- struct{}{}:
	default:
		u.Close()
		return
	}
	go func() {
		defer func() { <-s.turning }()
		turnAway(u, why)
	}()
}

// turnAway says why a connection is not served.
func turnAway(u *net.UnixConn, why error) {
	defer u.Close()
	c := protocol.NewConn(u)
	c.SetDeadline(time.Now().Add(patience))
	var hello [1024]byte
	if _, fds, err := c.ReadMessage(hello[:]); err == nil {
		protocol.CloseFDs(fds)
	}
	refuse(c, why)
}
