package frontdoor

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"vrdma/internal/budget"
	"vrdma/internal/caller"
	"vrdma/internal/memory"
	"vrdma/internal/protocol"
)

// What conversations take of the daemon, for their user's account. State is goroutines
// and the message buffer that a reply waits in while its reader is slow.
var (
	connectionBill = budget.Bill{budget.Files: 1, budget.State: 80 << 10}
	// The memfd of registered memory, and the descriptors by which the process is
	// watched and reached.
	processBill = budget.Bill{budget.Files: 3, budget.State: 16 << 10}
	toolBill    = budget.Bill{budget.Tools: 1}
)

// recognise tells who has connected, as far as the kernel knows. The account is held
// until leave.
func (s *Server) recognise(u *net.UnixConn) (caller.Caller, error) {
	who, err := caller.Of(u)
	if err != nil {
		return who, refusal(syscall.EPERM, "cannot tell who is calling: %v", err)
	}
	if s.cfg.Budget == nil {
		return who, nil
	}
	// The owner's number alone is not enough: root of a container has it too.
	if who.UID == s.uid && (s.home.Err != nil || who.HomeErr == nil && s.home.Stranger(&who.Home) == "") {
		who.Account, who.Owner = s.cfg.Budget.Owner().Hold(), true
	} else {
		who.Account = s.cfg.Budget.User(who.UID)
	}
	return who, nil
}

// enter charges a connection to its user.
func (s *Server) enter(u *net.UnixConn) (caller.Caller, error) {
	who, err := s.recognise(u)
	if err != nil {
		return who, err
	}
	if err := who.Account.Charge(connectionBill); err != nil {
		who.Account.Drop()
		s.overdrawn(err)
		return who, refusal(protocol.Errno(err, syscall.EMFILE), "%v", err)
	}
	return who, nil
}

// leave undoes enter.
func leave(who *caller.Caller) {
	who.Account.Refund(connectionBill)
	who.Account.Drop()
}

// recount has every process charged for the registered pages that it has now. What a process
// has deregistered it takes out of its memfd later, without a word.
func (s *Server) recount() {
	s.mu.Lock()
	var spaces []*memory.Space
	for _, p := range s.processes {
		spaces = append(spaces, p.space)
	}
	s.mu.Unlock()
	for _, space := range spaces {
		space.Recount()
	}
}

// overdrawn has the log say, once a second for each kind at most, that a user has met a
// limit: the program itself is told an errno and no more.
func (s *Server) overdrawn(err error) {
	var e *budget.Error
	if errors.As(err, &e) && s.warned.pass(e.Kind, time.Now()) {
		s.log.Warn("a limit is reached", "error", fmt.Sprint(e), "asked", e.Asked)
	}
}

// overdrawnBeside is overdrawn for the loop, which must not wait for the log.
func (s *Server) overdrawnBeside(err error) {
	var e *budget.Error
	if errors.As(err, &e) {
		go s.overdrawn(err)
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
