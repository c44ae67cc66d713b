package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"syscall"
	"time"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/device/registry"
	"vrdma.dev/vrdma/internal/events"
	"vrdma.dev/vrdma/internal/ratelimit"
)

// What connections cost their user's account. State is goroutines and the message buffer of a reply whose reader is
// slow.
var (
	connectionBill = budget.Bill{budget.Files: 1, budget.State: 80 << 10}
	// The memfd of registered memory, and the descriptors that watch and reach the process.
	processBill = budget.Bill{budget.Files: 4, budget.State: 16 << 10}
	// A client that is no process is reached through a pair of sockets, one of which is duplicated for a moment. Its
	// doorbell is open twice, and its relay buffers a message.
	relayBill = budget.Bill{budget.Files: 3, budget.State: 72 << 10}
	toolBill  = budget.Bill{budget.Tools: 1}
)

// admission decides which callers may connect, and charges connections to accounts.
type admission struct {
	log    *slog.Logger
	budget *budget.Ledger // nil: nothing is bounded
	events events.Sink
	uid    int                      // the daemon's user
	home   credentials.Household    // where the daemon runs
	warned ratelimit.Buckets[limit] // log lines about limits
}

func newAdmission(c *Config) *admission {
	return &admission{
		log: c.Log, budget: c.Budget, events: c.Events, uid: os.Geteuid(), home: credentials.Own(),
		warned: ratelimit.Buckets[limit]{Rate: 1, Burst: 1},
	}
}

// recognise identifies the peer as far as the kernel knows it. The account is held until leave.
func (a *admission) recognise(u *net.UnixConn, at endpoint) (credentials.Caller, error) {
	who, err := credentials.Of(u)
	if err != nil {
		return who, refusal(syscall.EPERM, "cannot tell who is calling: %v", err)
	}
	// The owner's uid alone is not enough: root of a container may have it, too.
	who.Owner = who.UID == a.uid && (a.home.Err != nil || who.HomeErr == nil && a.home.Stranger(&who.Home) == "")
	who.Account = at.account(&who)
	return who, nil
}

// account is the account of a caller.
func (a *admission) account(who *credentials.Caller) *budget.Account {
	switch {
	case a.budget == nil:
		return nil
	case who.Owner:
		return a.budget.Owner().Hold()
	}
	return a.budget.User(who.UID)
}

// enter charges a connection to its user.
func (a *admission) enter(u *net.UnixConn, at endpoint) (credentials.Caller, error) {
	who, err := a.recognise(u, at)
	if err != nil {
		return who, err
	}
	if err := who.Account.Charge(connectionBill); err != nil {
		who.Account.Drop()
		a.overdrawn(err)
		return who, refusal(protocol.Errno(err, syscall.EMFILE), "%v", err)
	}
	return who, nil
}

// leave undoes enter.
func leave(who *credentials.Caller) {
	who.Account.Refund(connectionBill)
	who.Account.Drop()
}

// overdrawn logs that a user has reached a limit, at most once a second for each kind and account. The program itself
// only gets an errno.
func (a *admission) overdrawn(err error) { a.overdrawnBy(err, "", nil, nil) }

// overdrawnBy is overdrawn for a request of a program at a NIC: the event names the NIC, the program and what it wanted.
func (a *admission) overdrawnBy(err error, wanted string, n *registry.NIC, who *credentials.Caller) {
	var e *budget.Error
	if !errors.As(err, &e) {
		return
	}
	if _, ok := a.warned.Take(limit{e.Kind, e.Tenant}, time.Now()); ok {
		event := events.Limit(e)
		if n != nil {
			event.By = events.By(who)
			if event.Reason = "NIC " + n.Name + ": " + event.Reason; wanted != "" {
				event.Reason = "NIC " + n.Name + ", " + wanted + ": " + fmt.Sprint(e)
			}
		}
		a.log.Warn("a limit is reached", "error", event.Reason, "asked", e.Asked)
		a.events.Record(event)
	}
}

// overdrawnBeside is overdrawn for the loop, which must not wait for the log.
func (a *admission) overdrawnBeside(err error) {
	var e *budget.Error
	if errors.As(err, &e) {
		go a.overdrawn(err)
	}
}

// A limit has its own log line: a kind of one tenant, or a kind of all accounts without a tenant together, because
// users can be many.
type limit struct {
	kind   budget.Kind
	tenant string
}
