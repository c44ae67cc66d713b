package frontdoor

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"vrdma/internal/budget"
	"vrdma/internal/channel"
)

// What conversations take of the daemon, for their user's account. State is goroutines
// and the message buffer that a reply waits in while its reader is slow.
var (
	connectionBill = budget.Bill{budget.Files: 1, budget.State: 80 << 10}
	// The memfd of registered memory, and the descriptors by which the process is
	// watched and reached.
	processBill = budget.Bill{budget.Files: 3, budget.State: 16 << 10}
	// A subscription's queue is made at once, and fills while nobody reads.
	traceBill = budget.Bill{budget.Tools: 15, budget.State: traceQueue * 512}
	toolBill  = budget.Bill{budget.Tools: 1}
)

// statusState is the heap that describing one queue pair takes, as a record and as JSON.
const statusState = 2 << 10

// recognise tells who has connected, as far as the kernel knows. The account is held
// until leave.
func (s *Server) recognise(u *net.UnixConn) (peer, error) {
	cred, err := credentials(u)
	if err != nil {
		return peer{}, refusal(syscall.EPERM, "cannot tell who is calling: %v", err)
	}
	p := peer{pid: int(cred.Pid), uid: int(cred.Uid), gid: int(cred.Gid)}
	p.home, p.homeErr = homeOfPeer(u, p.pid)
	if s.cfg.Budget == nil {
		return p, nil
	}
	// The owner's number alone is not enough: root of a container has it too.
	if p.uid == s.uid && (s.home.err != nil || p.homeErr == nil && s.home.stranger(&p.home) == "") {
		p.account, p.owner = s.cfg.Budget.Owner().Hold(), true
	} else {
		p.account = s.cfg.Budget.User(p.uid)
	}
	return p, nil
}

// share is the number by which turns of the loop and threads are shared out among users: the
// uid, but the daemon's owner has one that no container's root has.
func (p *peer) share() int {
	if p.owner {
		return -1
	}
	return p.uid
}

// enter charges a connection to its user.
func (s *Server) enter(u *net.UnixConn) (peer, error) {
	p, err := s.recognise(u)
	if err != nil {
		return p, err
	}
	if err := p.account.Charge(connectionBill); err != nil {
		p.account.Drop()
		s.overdrawn(err)
		return p, refusal(channel.Errno(err, syscall.EMFILE), "%v", err)
	}
	return p, nil
}

// leave undoes enter.
func (p *peer) leave() {
	p.account.Refund(connectionBill)
	p.account.Drop()
}

// sameUser reports whether p is a program of o's own user: of the same number, and living
// in the same place. If we do not know where one of them lives, it is not.
func (p *peer) sameUser(o *peer) bool {
	return p.uid == o.uid && p.homeErr == nil && o.homeErr == nil && p.home.differs(&o.home) == ""
}

// accountLines are what p's user holds.
func (p *peer) accountLines() []budget.Line {
	if p == nil {
		return nil
	}
	return p.account.Lines()
}

// overdrawn has the log say, once a second for each kind at most, that a user has met a
// limit: the program itself is told an errno and no more.
func (s *Server) overdrawn(err error) {
	var e *budget.Error
	if errors.As(err, &e) && s.warned.pass(e.Kind, time.Now()) {
		s.log.Warn("a limit is reached", "error", fmt.Sprint(e), "asked", e.Asked)
	}
}

// A limiter lets something happen once a second for each kind.
type limiter struct {
	mu   sync.Mutex
	last map[budget.Kind]time.Time // guarded by mu
}

func (l *limiter) pass(k budget.Kind, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.last[k]) < time.Second {
		return false
	}
	if l.last == nil {
		l.last = make(map[budget.Kind]time.Time)
	}
	l.last[k] = now
	return true
}
