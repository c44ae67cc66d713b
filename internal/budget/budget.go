package budget

import (
	"fmt"
	"maps"
	"slices"
	"sync"
)

// A Bill is an amount of each kind.
type Bill [kinds]uint64

// Limits are how much of each kind there may be.
type Limits struct {
	All    Bill // the daemon, its owner included
	Others Bill // everybody but the owner: All - Others is the owner's reserve
	User   Bill // one user who is not the owner
}

// A Ledger holds the accounts of one daemon.
type Ledger struct {
	limits Limits

	mu     sync.Mutex // guards the rest, and every account's fields
	all    Account
	others Account
	owner  Account
	users  map[int]*Account // those that are held or owe something
}

// An Account is what one user, or a group of them, holds.
type Account struct {
	ledger *Ledger
	parent *Account
	name   string
	uid    int
	limit  *Bill
	used   Bill
	held   int // by Hold, without Drop
}

// New makes a ledger.
func New(l Limits) *Ledger {
	b := &Ledger{limits: l, users: make(map[int]*Account)}
	b.all = Account{ledger: b, name: "the daemon", limit: &b.limits.All}
	b.others = Account{ledger: b, parent: &b.all, name: "all users but the daemon's owner together", limit: &b.limits.Others}
	b.owner = Account{ledger: b, parent: &b.all, name: "the daemon's owner", limit: &b.limits.All}
	return b
}

// Owner is the account of the daemon's owner, who may also use the reserve.
func (l *Ledger) Owner() *Account { return &l.owner }

// User is the account of another user, held for the caller: Drop ends that.
func (l *Ledger) User(uid int) *Account {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.users[uid]
	if a == nil {
		a = &Account{ledger: l, parent: &l.others, name: fmt.Sprintf("user %d", uid), uid: uid, limit: &l.limits.User}
		l.users[uid] = a
	}
	a.held++
	return a
}

// Users is how many accounts of users there are.
func (l *Ledger) Users() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.users)
}

// Hold keeps the account for one more user of the pointer.
func (a *Account) Hold() *Account {
	if a != nil {
		a.ledger.mu.Lock()
		defer a.ledger.mu.Unlock()
		a.held++
	}
	return a
}

// Drop undoes User or Hold. An account that nobody holds and that owes nothing is
// forgotten.
func (a *Account) Drop() {
	if a == nil {
		return
	}
	a.ledger.mu.Lock()
	defer a.ledger.mu.Unlock()
	a.held--
	a.forget()
}

// forget drops an account that means nothing any more. The ledger's mu is held.
func (a *Account) forget() {
	if a.held <= 0 && a.used == (Bill{}) && a.ledger.users[a.uid] == a {
		delete(a.ledger.users, a.uid)
	}
}

// Charge counts b, or nothing and returns an *Error.
func (a *Account) Charge(b Bill) error {
	if a == nil {
		return nil
	}
	a.ledger.mu.Lock()
	defer a.ledger.mu.Unlock()
	for at := a; at != nil; at = at.parent {
		for k, n := range b {
			// The sum cannot overflow: used is at most the limit, and n is
			// checked against what is left.
			if n != 0 && (at.used[k] >= at.limit[k] || n > at.limit[k]-at.used[k]) {
				return &Error{Kind: Kind(k), Whose: at.name, Limit: at.limit[k], Used: at.used[k], Asked: n}
			}
		}
	}
	for at := a; at != nil; at = at.parent {
		for k, n := range b {
			at.used[k] += n
		}
	}
	return nil
}

// Refund gives back what Charge counted.
func (a *Account) Refund(b Bill) {
	if a == nil {
		return
	}
	a.ledger.mu.Lock()
	defer a.ledger.mu.Unlock()
	for at := a; at != nil; at = at.parent {
		for k, n := range b {
			if n > at.used[k] {
				panic(fmt.Sprintf("budget: %s: a refund of %d %s, of %d", at.name, n, Kind(k), at.used[k]))
			}
			at.used[k] -= n
		}
	}
	a.forget()
}

// Used is what the account holds.
func (a *Account) Used() Bill {
	if a == nil {
		return Bill{}
	}
	a.ledger.mu.Lock()
	defer a.ledger.mu.Unlock()
	return a.used
}

// A Line is what one account holds of one kind.
type Line struct {
	Whose       string
	Kind        Kind
	Used, Limit uint64
}

// Lines are what a holds, of every kind that it holds something of.
func (a *Account) Lines() []Line {
	if a == nil {
		return nil
	}
	a.ledger.mu.Lock()
	defer a.ledger.mu.Unlock()
	return a.lines(nil)
}

func (a *Account) lines(out []Line) []Line {
	for k, n := range a.used {
		if n > 0 {
			out = append(out, Line{a.name, Kind(k), n, a.limit[k]})
		}
	}
	return out
}

// Lines are what all accounts hold: first the daemon, then all but the owner, then each
// user, by number.
func (l *Ledger) Lines() []Line {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.others.lines(l.all.lines(nil))
	for _, uid := range slices.Sorted(maps.Keys(l.users)) {
		out = l.users[uid].lines(out)
	}
	return out
}

// Name says whose account it is.
func (a *Account) Name() string {
	if a == nil {
		return "nobody"
	}
	return a.name
}
