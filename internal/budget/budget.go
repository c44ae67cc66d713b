package budget

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
)

// A Bill is an amount of each kind.
type Bill [kinds]uint64

// Limits are the limits of each kind.
type Limits struct {
	All    Bill // the whole daemon, including its owner
	Others Bill // all users except the owner: All - Others is the owner's reserve
	User   Bill // one user other than the owner
}

// A Ledger has the accounts of one daemon.
type Ledger struct {
	limits Limits

	mu     sync.Mutex // guards the other fields, and the fields of every account
	all    Account
	others Account
	owner  Account
	users  map[user]*Account // accounts that are held or not empty
	// tenants are the accounts that are held or have users.
	tenants map[string]*Account
	tight   bool // memory is short, see SetTight
}

// A user is a user number, of the daemon or of a tenant.
type user struct {
	tenant *Account // nil: no tenant
	uid    int
}

// An Account counts the resources of one user, or of a group of users.
type Account struct {
	ledger *Ledger
	parent *Account
	name   string
	user   user   // in a user's account
	tenant string // in a tenant's account
	limit  *Bill
	used   Bill
	held   int // number of Holds without Drop
}

// New returns a ledger.
func New(l Limits) *Ledger {
	b := &Ledger{limits: l, users: make(map[user]*Account), tenants: make(map[string]*Account)}
	b.all = Account{ledger: b, name: "the daemon", limit: &b.limits.All}
	b.others = Account{ledger: b, parent: &b.all, name: "all users but the daemon's owner together", limit: &b.limits.Others}
	b.owner = Account{ledger: b, parent: &b.all, name: "the daemon's owner", limit: &b.limits.All}
	return b
}

// Owner returns the account of the daemon's owner, which may also use the reserve.
func (l *Ledger) Owner() *Account { return &l.owner }

// User returns the account of another user and holds it for the caller, until Drop.
func (l *Ledger) User(uid int) *Account {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.userOf(user{nil, uid}, &l.others, fmt.Sprintf("user %d", uid))
}

// userOf returns the account of a user below parent, held. The caller holds the ledger's mu.
func (l *Ledger) userOf(u user, parent *Account, name string) *Account {
	a := l.users[u]
	if a == nil {
		a = &Account{ledger: l, parent: parent, name: name, user: u, limit: &l.limits.User}
		l.users[u] = a
		if u.tenant != nil {
			u.tenant.held++
		}
	}
	a.held++
	return a
}

// Tenant returns the account of a tenant and holds it for the caller, until Drop. A 0 in quota means no limit of the tenant itself. For an
// existing tenant it sets the quota, even if the tenant holds more.
func (l *Ledger) Tenant(name string, quota Bill) *Account {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.tenants[name]
	if a == nil {
		a = &Account{ledger: l, parent: &l.others, name: "tenant " + name, tenant: name, limit: new(Bill)}
		l.tenants[name] = a
	}
	for k := range quota {
		if a.limit[k] = quota[k]; quota[k] == 0 && k < counted {
			a.limit[k] = math.MaxInt64
		}
	}
	a.held++
	return a
}

// User returns the account of a user of the tenant with account a, held like that of Ledger.User.
func (a *Account) User(uid int) *Account {
	if a == nil {
		return nil
	}
	a.ledger.mu.Lock()
	defer a.ledger.mu.Unlock()
	return a.ledger.userOf(user{a, uid}, a, fmt.Sprintf("user %d of %s", uid, a.name))
}

// Users returns the number of users' accounts.
func (l *Ledger) Users() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.users)
}

// Hold adds a reference to the account.
func (a *Account) Hold() *Account {
	if a != nil {
		a.ledger.mu.Lock()
		defer a.ledger.mu.Unlock()
		a.held++
	}
	return a
}

// Drop reverts User or Hold. An empty account that is not held is removed.
func (a *Account) Drop() {
	if a == nil {
		return
	}
	a.ledger.mu.Lock()
	defer a.ledger.mu.Unlock()
	a.held--
	a.forget()
}

// forget removes an account that is empty and not held. The caller holds the ledger's mu.
func (a *Account) forget() {
	if a.held > 0 || a.used != (Bill{}) {
		return
	}
	if a.tenant != "" {
		delete(a.ledger.tenants, a.tenant)
	}
	if a.ledger.users[a.user] == a {
		delete(a.ledger.users, a.user)
		if t := a.user.tenant; t != nil {
			t.held--
			t.forget()
		}
	}
}

// Charge counts b, or counts nothing and returns an *Error.
func (a *Account) Charge(b Bill) error {
	if a == nil {
		return nil
	}
	a.ledger.mu.Lock()
	defer a.ledger.mu.Unlock()
	for at := a; at != nil; at = at.parent {
		for k, n := range b {
			// The sum cannot overflow: used is at most the limit, and n is compared with the rest.
			limit := at.limitOf(k)
			if n != 0 && !free(k, at.limit[k]) && (at.used[k] >= limit || n > limit-at.used[k]) {
				return &Error{Kind: Kind(k), Whose: at.name, Tenant: at.tenant, Limit: limit, Used: at.used[k], Asked: n, Tight: limit != at.limit[k]}
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

// free reports whether a kind has no limit: for kinds that are only counted, 0 means none.
func free(k int, limit uint64) bool { return limit == 0 && k >= counted }

// Refund reverts a Charge.
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

// Used returns the resources of the account.
func (a *Account) Used() Bill {
	if a == nil {
		return Bill{}
	}
	a.ledger.mu.Lock()
	defer a.ledger.mu.Unlock()
	return a.used
}

// A Usage is what one account uses of one kind.
type Usage struct {
	Whose       string
	Kind        Kind
	Used, Limit uint64
}

// Usage returns the account's usage of every kind that is not 0.
func (a *Account) Usage() []Usage {
	if a == nil {
		return nil
	}
	a.ledger.mu.Lock()
	defer a.ledger.mu.Unlock()
	return a.lines(nil)
}

func (a *Account) lines(out []Usage) []Usage {
	for k, n := range a.used {
		if n > 0 && !free(k, a.limit[k]) {
			out = append(out, Usage{a.name, Kind(k), n, a.limit[k]})
		}
	}
	return out
}

// Usage returns the usage of all accounts: first the daemon, then all users except the owner, then each tenant by name, then each
// user by number.
func (l *Ledger) Usage() []Usage {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.others.lines(l.all.lines(nil))
	for _, name := range slices.Sorted(maps.Keys(l.tenants)) {
		out = l.tenants[name].lines(out)
	}
	byNumber := func(a, b *Account) int {
		return cmp.Or(cmp.Compare(a.user.uid, b.user.uid), cmp.Compare(a.name, b.name))
	}
	for _, a := range slices.SortedFunc(maps.Values(l.users), byNumber) {
		out = a.lines(out)
	}
	return out
}

// Name returns the name of the account.
func (a *Account) Name() string {
	if a == nil {
		return "nobody"
	}
	return a.name
}
