package nic

import (
	"sync"
	"syscall"

	"vrdma.dev/vrdma/internal/ib"
)

// A Guard has the rules of one NIC: the peers that it may communicate with, and the operations. A
// NIC without a Guard may do everything. The loop calls its methods, which must not block.
//
//	rdma_connect, REQ ── package rdmacm ─┐
//	modify to RTR, create AH, join       ├──▶ Guard.Judge ──▶ refused: errno, counter, Denial
//	datagrams, out and in                ┘       └──▶ operations: transport.QP.Deny
//
// An answer for a queue pair or a connection holds until the NIC gets another Guard. Then all of
// them are judged again (SetGuard, Rejudge).
type Guard interface {
	// Judge says which operations a connection with a peer, or datagrams to and from it,
	// may use; none: it is refused. Without known the peer is not in the NIC's network. A
	// multicast group is joined by ib.Them, and sent to by ib.Us.
	Judge(peer ib.GID, c ib.Contact) (ops ib.Operations, known bool)
	// Type reports whether the NIC may have queue pairs of a type.
	Type(t ib.Service) bool
	// Why says for people which rule refuses it.
	Why(peer ib.GID, c ib.Contact) string
}

// Connections is the connection manager of a NIC, as its rules see it.
type Connections interface {
	// Contact returns the service and the initiator of the connection between queue pair num and
	// queue pair peerNum at peer. For datagrams it returns those of num (0: any) with peer; if
	// there are several, one that is allowed. It returns false for a connection that the
	// connection manager did not make.
	Contact(num uint32, t ib.Service, peer ib.GID, peerNum uint32) (ib.Contact, bool)
	// Rejudge judges connections again, about most of them, and reports whether there are
	// more that were made under former rules.
	Rejudge(most int) (more bool)
}

// A Refusal is what was refused.
type Refusal uint8

// Refusals.
const (
	RefusedConnect   Refusal = iota // rdma_connect
	RefusedRequest                  // a request for a connection that came in
	RefusedPeer                     // a queue pair's peer: modify to RTR
	RefusedAddress                  // an address handle
	RefusedGroup                    // membership of a multicast group
	RefusedType                     // a queue pair of this type
	RefusedSend                     // a datagram that was sent
	RefusedReceive                  // a datagram that came
	RefusedOperation                // an operation that a rule forbids, which ended the connection
	Revoked                         // a connection that had been allowed
	RefusedAccess                   // an operation on its memory that key, bounds or rights forbid
	RefusedQuota                    // an object beyond what the tenant may have
	NumRefusals
)

var refusalNames = [NumRefusals]string{"connect", "accept", "rtr", "ah", "join", "type", "send", "receive", "op", "revoked", "access", "quota"}

func (r Refusal) String() string { return refusalNames[r] }

// Refusals counts refusals by type. For operations it counts the connections that ended.
// Counters.Denied counts the requests, also those of UC, which are lost without an error.
type Refusals [NumRefusals]uint64

// A Denial describes a refusal for NIC.Denied.
type Denial struct {
	NIC     *NIC
	What    Refusal
	Peer    ib.GID
	Contact ib.Contact
	QP      uint32 // 0: none
	Pid     int    // of the program that it happened to; 0: none
	UID     int    // the program's user; not valid if Pid is 0
	Program string
	Why     string
}

// rules is a NIC's state of its Guard.
type rules struct {
	guard       Guard
	number      uint32 // of the Guard; not 0
	connections Connections
	old         []*QP // that have to be judged again
	// All loops that serve the NIC count refusals: mu guards what follows, and calls of NIC.Denied.
	mu    sync.Mutex
	count Refusals
	told  int     // denials since the time in since; those above denialsPerSecond were not reported
	since ib.Time // when the current second began
}

// Guard is what the NIC has to ask; nil: everything is allowed.
func (n *NIC) Guard() Guard { return n.rules.guard }

// Generation changes with SetGuard.
func (n *NIC) Generation() uint32 { return n.rules.number }

// SetConnections says which connection manager the NIC has.
func (n *NIC) SetConnections(c Connections) { n.rules.connections = c }

// Refusals returns the number of refusals of each type. It runs on the loop.
func (n *NIC) Refusals() Refusals { return n.rules.count }

// SetGuard replaces the rules of the NIC; nil removes them. New objects are judged by the new rules
// at once. For existing objects, Rejudge has to be called until it returns false. It runs on the
// loop.
func (n *NIC) SetGuard(g Guard) {
	r := &n.rules
	r.guard = g
	r.number = max(r.number+1, 1)
	clear(r.old)
	r.old = r.old[:0]
	for _, q := range n.qps {
		r.old = append(r.old, q)
	}
}

// Rejudge judges queue pairs and connections again, about most of them, and reports whether there
// are more. It runs on the loop.
func (n *NIC) Rejudge(most int) (more bool) {
	r := &n.rules
	for ; most > 0 && len(r.old) > 0; most-- {
		last := len(r.old) - 1
		q := r.old[last]
		r.old[last] = nil
		r.old = r.old[:last]
		r.rejudge(q)
	}
	if len(r.old) > 0 {
		return true
	}
	r.old = nil
	return r.connections != nil && r.connections.Rejudge(most)
}

// denialsPerSecond limits how many denials of a NIC are reported each second, because a program can
// cause any number of them. All of them are counted.
const denialsPerSecond = 32

// Refuse counts a refusal and calls Denied with it. It sets NIC, What and Why of d. It runs on any
// loop that serves the NIC.
func (n *NIC) Refuse(what Refusal, d Denial, now ib.Time) {
	r := &n.rules
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count[what]++
	if n.Denied == nil {
		return
	}
	if now-r.since >= 1e9 {
		r.since, r.told = now, 0
	}
	if r.told++; r.told > denialsPerSecond {
		return
	}
	d.NIC, d.What = n, what
	if r.guard != nil && d.Why == "" {
		d.Why = r.guard.Why(d.Peer, d.Contact)
	}
	n.Denied(d)
}

// refuse is NIC.Refuse for something that a queue pair did.
func (r *rules) refuse(q *QP, what Refusal, peer ib.GID, c ib.Contact) {
	q.nic.Refuse(what, Denial{Peer: peer, Contact: c, QP: q.num, Pid: q.session.Pid, UID: q.session.UID, Program: q.session.Program}, q.owner.Now())
}

// contactWith returns how the queue pair was connected to a peer.
func (r *rules) contactWith(q *QP, peer ib.GID, num uint32) ib.Contact {
	if r.connections != nil {
		if c, ok := r.connections.Contact(q.num, q.typ, peer, num); ok {
			return c
		}
	}
	return ib.Contact{Type: q.typ}
}

// mayHave reports whether the session may have queue pairs of a type: EPERM if not.
func (r *rules) mayHave(s *Session, t ib.Service) error {
	if g := r.guard; g != nil && !g.Type(t) {
		s.nic.Refuse(RefusedType, Denial{
			Contact: ib.Contact{Type: t}, Pid: s.Pid, UID: s.UID, Program: s.Program, Why: "the NIC's types do not include " + t.String(),
		}, s.now())
		return syscall.EPERM
	}
	return nil
}

// now is the loop's clock.
func (s *Session) now() ib.Time {
	if s.owner == nil {
		return 0
	}
	return s.owner.Now()
}

// mayMeet judges the new peer of a connected queue pair when its attributes change: EACCES if the
// rules refuse the peer, ENETUNREACH if the peer is not in the NIC's network.
func (r *rules) mayMeet(q *QP, mask ib.AttrMask, a *QPAttr) error {
	g := r.guard
	if g == nil || mask&ib.MaskAV == 0 {
		return nil
	}
	num := q.attr.DestQPN
	if mask&ib.MaskDestQPN != 0 {
		num = a.DestQPN & 0xffffff
	}
	c := r.contactWith(q, a.AH.DGID, num)
	ops, known := g.Judge(a.AH.DGID, c)
	if ops == 0 {
		r.refuse(q, RefusedPeer, a.AH.DGID, c)
		return refusalErrno(known)
	}
	q.contact, q.judged = c, r.number
	q.tr.Deny(ib.AllOperations &^ ops)
	return nil
}

func refusalErrno(known bool) error {
	if !known {
		return syscall.ENETUNREACH
	}
	return syscall.EACCES
}

// mayAddress judges an address handle. It belongs to no queue pair yet, so it is allowed if datagrams
// without the connection manager are, or those of any service that the connection manager knows.
func (r *rules) mayAddress(s *Session, dgid ib.GID) error {
	if r.guard == nil {
		return nil
	}
	c := ib.Contact{Type: ib.UD}
	if dgid.IsMulticast() {
		c.By = ib.Us
	}
	ok, known := r.mayTalk(0, dgid, c)
	if ok {
		return nil
	}
	s.nic.Refuse(RefusedAddress, Denial{Peer: dgid, Contact: c, Pid: s.Pid, UID: s.UID, Program: s.Program}, s.now())
	return refusalErrno(known)
}

// mayTalk judges datagrams of queue pair num (0: any), without the connection manager or of a service
// that it resolved.
func (r *rules) mayTalk(num uint32, peer ib.GID, c ib.Contact) (ok, known bool) {
	ops, known := r.guard.Judge(peer, c)
	if ops&ib.OpSend == 0 && r.connections != nil && !peer.IsMulticast() {
		if k, found := r.connections.Contact(num, ib.UD, peer, 0); found {
			ops, _ = r.guard.Judge(peer, k)
		}
	}
	return ops&ib.OpSend != 0, known
}

// MayGreet reports whether the rules allow a peer for any type of queue pair, before one is connected to it.
func (n *NIC) MayGreet(peer ib.GID) bool {
	if n.rules.guard == nil {
		return true
	}
	for _, t := range []ib.Service{ib.RC, ib.UC, ib.UD} {
		if ops, _ := n.rules.guard.Judge(peer, ib.Contact{Type: t}); ops != 0 {
			return true
		}
	}
	return false
}

// mayJoin judges the membership of a multicast group: EACCES if it is refused.
func (r *rules) mayJoin(q *QP, group ib.GID) error {
	g := r.guard
	if g == nil {
		return nil
	}
	c := ib.Contact{Type: ib.UD, By: ib.Them}
	if ops, _ := g.Judge(group, c); ops == 0 {
		r.refuse(q, RefusedGroup, group, c)
		return syscall.EACCES
	}
	return nil
}

// A verdict is what was decided last about datagrams in one direction.
type verdict struct {
	rules uint32 // the number of the Guard that decided; 0: none did
	ok    bool
	peer  ib.GID
}

// MayTell reports whether the queue pair may send datagrams to an address. If not they are lost.
func (q *QP) MayTell(peer *ib.GID) bool {
	return q.nic.rules.guard == nil || q.nic.rules.may(q, &q.tells, peer, RefusedSend)
}

// MayHear reports whether it takes datagrams from an address.
func (q *QP) MayHear(peer *ib.GID) bool {
	return q.nic.rules.guard == nil || q.nic.rules.may(q, &q.hears, peer, RefusedReceive)
}

// may is MayTell and MayHear with a Guard. v is the last verdict, which holds until rules or peer change.
func (r *rules) may(q *QP, v *verdict, peer *ib.GID, what Refusal) bool {
	if v.rules == r.number && v.peer == *peer {
		if !v.ok {
			r.mu.Lock()
			r.count[what]++
			r.mu.Unlock()
		}
		return v.ok
	}
	c := ib.Contact{Type: ib.UD}
	if peer.IsMulticast() {
		c.By = ib.Us
	}
	ok, _ := r.mayTalk(q.num, *peer, c)
	*v = verdict{r.number, ok, *peer}
	if !ok {
		r.refuse(q, what, *peer, c)
	}
	return ok
}

// rejudge decides anew about what the queue pair has.
func (r *rules) rejudge(q *QP) {
	if q.gone {
		return
	}
	switch q.tr.State() {
	case ib.StateReset, ib.StateInit, ib.StateError:
		return
	}
	switch {
	case r.guard == nil:
		q.tr.Deny(0)
	case q.typ == ib.UD:
		for _, gid := range append([]ib.GID(nil), q.groups...) {
			if r.mayJoin(q, gid) != nil {
				q.session.DetachMcast(q.handle, gid, 0)
			}
		}
		if !r.guard.Type(ib.UD) {
			r.revoke(q, ib.GID{}, ib.Contact{Type: ib.UD})
		}
	default:
		if q.judged == 0 {
			q.contact = r.contactWith(q, q.PeerGID(), q.attr.DestQPN)
		}
		q.judged = r.number
		ops, _ := r.guard.Judge(q.PeerGID(), q.contact)
		if ops == 0 {
			r.revoke(q, q.PeerGID(), q.contact)
			return
		}
		q.tr.Deny(ib.AllOperations &^ ops)
	}
}

// noteDenied reports refused operations of a queue pair that has failed, perhaps because of one.
func (r *rules) noteDenied(q *QP) {
	if n := q.tr.Counters().Denied; n != q.denied {
		q.denied = n
		r.refuse(q, RefusedOperation, q.PeerGID(), q.contact)
	}
}

// revoke ends what the rules do not allow any more: the queue pair fails.
func (r *rules) revoke(q *QP, peer ib.GID, c ib.Contact) {
	q.tr.Revoke(q.owner.Now(), &q.env)
	q.publish()
	q.NoteError()
	q.owner.Wake()
	q.revoked = r.number
	r.refuse(q, Revoked, peer, c)
}

// Revoked reports whether the current rules have ended a queue pair. That is counted and reported
// already, so the end of its connection is not reported again.
func (n *NIC) Revoked(num uint32) bool {
	q := n.qps[num]
	return q != nil && q.revoked != 0 && q.revoked == n.rules.number
}
