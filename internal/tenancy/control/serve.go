package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/events"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

const (
	// mostRequest bounds a request of the operator, mostTenant a request of a tenant's administrator. A query has no
	// objects and is short.
	mostRequest  = 16 << 20
	mostTenant   = 1 << 20
	mostQuestion = 64 << 10
	// mostKeys is how many objects an administrator may delete at once.
	mostKeys = 10000
	// parsed is the memory that a byte of a request may take while it is read and checked
	// (TestObjectsMemory).
	parsed = 24
	// itemState is the memory that one object or event of a reply may take.
	itemState = 4 << 10
)

// How long a tool may take to send a request, and to read a reply. Tests use longer times, because their machine may
// stall.
var askTime, readTime = 30 * time.Second, 30 * time.Second

// A conversation is one request and its replies.
type conversation struct {
	p    *Plane
	c    *protocol.Conn
	peer credentials.Peer
	who  tenant.Caller
	by   events.Actor
	held budget.Bill
}

// callerOf is the peer as rules know it. A process outside of the daemon's namespaces is unknown to them.
func callerOf(c syscall.Conn, peer credentials.Peer) tenant.Caller {
	who := tenant.Caller{Operator: peer.Operator, UID: -1}
	if peer.Resident {
		who.UID = peer.Who.UID
		who.GIDs = append([]int{peer.Who.GID}, credentials.Groups(c)...)
	}
	return who
}

// Administers reports whether the peer on c administers a tenant, or is the operator.
func (p *Plane) Administers(c syscall.Conn, peer credentials.Peer, name string) bool {
	who, t := callerOf(c, peer), p.World().Tenant(name)
	return who.Operator || t != nil && t.Spec.Administrators.Admits(who)
}

// Serve answers one request about objects. The server has told the caller that it may send one.
func (p *Plane) Serve(c *protocol.Conn, peer credentials.Peer) {
	t := &conversation{p: p, c: c, peer: peer, who: callerOf(c, peer)}
	t.by = events.Actor{Pid: peer.Who.Pid, UID: peer.Who.UID, Program: peer.Who.Program}
	defer func() { peer.Who.Account.Refund(t.held) }()
	req, err := t.receive()
	if err == nil {
		err = t.answer(req)
	}
	if err != nil {
		t.fail(err)
	}
}

// changes reports whether the caller may change anything at all.
func (t *conversation) changes() bool {
	return t.who.Operator || t.peer.NIC == "" && t.p.administers(t.who)
}

func (p *Plane) administers(who tenant.Caller) bool {
	return slices.ContainsFunc(p.World().Objects(tenant.KindTenant), func(o tenant.Object) bool {
		return o.(*tenant.Tenant).Spec.Administrators.Admits(who)
	})
}

// errHungUp: the tool has disconnected.
var errHungUp = errors.New("the tool disconnected")

// receive reads the request. A caller that may change nothing needs no long request.
func (t *conversation) receive() (*Request, error) {
	most := mostQuestion
	switch {
	case t.who.Operator:
		most = mostRequest
	case t.changes():
		most = mostTenant
	}
	t.c.SetReadDeadline(time.Now().Add(askTime))
	defer t.c.SetReadDeadline(time.Time{})
	req, held := new(Request), 0
	err := t.c.ReceiveJSONUpTo(req, most, func(bytes int) error {
		if bytes > most {
			return errTooLong{most}
		}
		// In steps, so that a long request is not charged piece by piece.
		if bytes > held {
			held = min(most, max(2*held, bytes, 64<<10))
			return t.charge(budget.Bill{budget.State: parsed * uint64(held)})
		}
		return nil
	})
	var refused *budget.Error
	var long errTooLong
	switch {
	case err == nil:
		return req, nil
	case errors.As(err, &refused), errors.As(err, &long), errors.Is(err, protocol.ErrMalformed):
		return nil, err
	}
	return nil, errHungUp
}

// errTooLong is the error for a request of more bytes than this.
type errTooLong struct{ most int }

func (e errTooLong) Error() string {
	return fmt.Sprintf("the request is longer than %d bytes: apply the objects in several files", e.most)
}

// charge raises the bill of this conversation.
func (t *conversation) charge(b budget.Bill) error {
	more := b
	for kind, held := range t.held {
		if more[kind] = 0; b[kind] > held {
			more[kind] = b[kind] - held
		}
	}
	if err := t.peer.Who.Account.Charge(more); err != nil {
		if e := (*budget.Error)(nil); errors.As(err, &e) {
			t.p.Record(events.Limit(e))
		}
		return err
	}
	for kind := range t.held {
		t.held[kind] += more[kind]
	}
	return nil
}

// answer serves the request.
func (t *conversation) answer(req *Request) error {
	switch req.Op {
	case OpApply:
		return t.apply(req, false)
	case OpImport:
		if !t.who.Operator {
			return denied("only the operator may import a store, at the control socket")
		}
		return t.apply(req, req.Replace)
	case OpDelete:
		return t.change(req, tenant.Change{Delete: req.Keys, Force: req.Force})
	case OpGet:
		return t.get(req)
	case OpDescribe:
		return t.describe(req)
	case OpWatch:
		return t.watch(req)
	case OpEvents:
		return t.events(req)
	case OpPolicyTest:
		return t.testPolicy(req)
	case OpExport:
		return t.export()
	case OpBind, OpUnbind, OpBound, OpTell:
		return t.workloads(req)
	}
	return fmt.Errorf("this daemon does not know the request %.40q: it may be older than the command", req.Op)
}

func denied(format string, args ...any) error {
	return &Error{Problems: []string{fmt.Sprintf(format, args...)}, Denied: true}
}

// mayChange returns why the caller may change nothing. The world decides what it may change.
func (t *conversation) mayChange() error {
	if t.changes() {
		return nil
	}
	by := fmt.Sprintf("user %d", t.by.UID)
	if !t.peer.Resident {
		by = "a process that does not live where the daemon lives, as in a container,"
	}
	return denied("%s may not change objects here: the operator may, at the control socket, and a tenant's administrators, from where the daemon runs", by)
}

// apply puts objects; with replace it deletes all others.
func (t *conversation) apply(req *Request, replace bool) error {
	if err := t.mayChange(); err != nil {
		return err
	}
	c := tenant.Change{Put: req.Objects, Force: req.Force}
	switch {
	case replace:
		c.Delete, c.Force = others(t.p.World(), req.Objects), true
	case req.Prune:
		c.Delete = besides(t.p.World(), req.Objects)
	}
	return t.change(req, c)
}

// others are the objects of a world that are not among some.
func others(w *tenant.World, some []tenant.Object) (keys []tenant.Key) {
	among := make(map[tenant.Key]bool, len(some))
	for _, o := range some {
		among[o.Key()] = true
	}
	for _, o := range w.Objects("") {
		if !among[o.Key()] {
			keys = append(keys, o.Key())
		}
	}
	return keys
}

// labelContainer is the label of a NIC that was made for a container, and ends with it.
const labelContainer = "vrdma.io/container"

// besides are the networks, NICs and policies of the tenants among some objects that are not among them themselves. NICs that
// engines made for containers are left out.
func besides(w *tenant.World, some []tenant.Object) []tenant.Key {
	tenants := make(map[string]bool)
	for _, o := range some {
		if k := o.Key(); k.Kind == tenant.KindTenant {
			tenants[k.Name] = true
		}
	}
	return slices.DeleteFunc(others(w, some), func(k tenant.Key) bool {
		if n := w.NIC(k.Tenant, k.Name); k.Kind == tenant.KindNIC && n != nil && n.Metadata.Labels[labelContainer] != "" {
			return true
		}
		return k.Tenant == "" || !tenants[k.Tenant]
	})
}

// result is the result for one object.
func result(e tenant.Effect, changes bool) (r Result, err error) {
	r = Result{Key: e.Key, Verb: e.What()}
	if !changes || e.Old == e.New {
		return r, nil
	}
	for _, side := range []struct {
		of   tenant.Object
		text *string
	}{{e.Old, &r.Old}, {e.New, &r.New}} {
		if side.of == nil {
			continue
		}
		text, err := tenant.Marshal(side.of)
		if err != nil {
			return r, err
		}
		*side.text = string(text)
	}
	return r, nil
}

// change makes a change and sends the results.
func (t *conversation) change(req *Request, c tenant.Change) error {
	if err := t.mayChange(); err != nil {
		return err
	}
	if n := len(req.Keys); n > mostKeys && !t.who.Operator {
		return fmt.Errorf("%d objects are to be deleted: delete at most %d at a time", n, mostKeys)
	}
	if !t.who.Operator {
		if err := admitChange(&t.p.paces, t.who.UID, time.Now()); err != nil {
			return err
		}
	}
	effects, warnings, err := t.p.Change(t.who, t.by, c, req.DryRun)
	if err != nil {
		return err
	}
	reply := &Reply{Revision: t.p.snapshots.now.Load().revision, Warnings: warnings}
	for _, e := range effects {
		r, err := result(e, req.Changes)
		if err != nil {
			return err
		}
		reply.Results = append(reply.Results, r)
	}
	cost := len(reply.Results) / 8
	if req.Changes {
		cost = 2 * len(reply.Results)
	}
	return t.send(reply, cost)
}

// send sends a reply, whose memory is charged as that of items.
func (t *conversation) send(r *Reply, items int) error {
	if err := t.charge(budget.Bill{budget.State: t.held[budget.State] + uint64(items)*itemState}); err != nil {
		return err
	}
	t.c.SetWriteDeadline(time.Now().Add(readTime))
	defer t.c.SetWriteDeadline(time.Time{})
	if t.c.SendJSON(r) != nil {
		return errHungUp
	}
	return nil
}

// fail sends an error.
func (t *conversation) fail(err error) {
	if errors.Is(err, errHungUp) {
		return
	}
	var e *Error
	if !errors.As(err, &e) {
		e = errorOf(err)
	}
	const most = 200
	if n := len(e.Problems); n > most {
		cut := *e
		cut.Problems = append(slices.Clone(e.Problems[:most]), fmt.Sprintf("and %d more", n-most))
		cut.Errors = e.Errors[:min(most, len(e.Errors))]
		e = &cut
	}
	t.c.SetWriteDeadline(time.Now().Add(readTime))
	t.c.SendJSON(Reply{Error: e}) // an error means that the tool is gone
}

// gone is a context that ends when the tool disconnects, or the plane is closed. The returned function ends it, and
// waits.
func (t *conversation) gone() (context.Context, func()) {
	ctx, cancel := context.WithCancel(t.p.ended)
	over := make(chan struct{})
	go func() {
		defer close(over)
		defer cancel()
		t.c.Wait() // the tool sends nothing more: this is its end
	}()
	stop := context.AfterFunc(t.p.ended, func() { t.c.Close() })
	return ctx, func() {
		cancel()
		t.c.Close()
		stop()
		<-over
	}
}
