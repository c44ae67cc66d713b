package cm

import (
	"container/list"

	"vrdma.dev/vrdma/internal/ib"
)

// A connection with an owner is charged to the owner's user. A connection that has lost its owner is charged to nobody: it waits for a
// DREP or stays in TimeWait, for a time that depends on the peer. A peer that makes a program accept and close connections could fill the
// memory with them. So their number is limited. Each takes less than 1 KiB.
//
// A connection that is dropped early is forgotten. No program notices it. A repeated DREQ is still answered, because the answer needs no
// state. A repeated REQ or SIDRREQ that arrives later is a new request.

const (
	// maxLeaving limits the connections without an owner in DreqSent. It is the maximum number of identifiers of a program, all of which
	// may end at once. Their DREQs are repeated for some seconds.
	maxLeaving = 1 << 16
	// maxEnded limits those in TimeWait, answered SIDR requests included. maxEndedOf limits those with one peer, so that a peer that
	// floods loses its own. An honest peer reaches it with more than 1900 connections per second: TimeWait is usually 4.3 s.
	maxEnded   = 1 << 15
	maxEndedOf = 1 << 13
)

// orphans are the connections without an owner in one state, in the order in which they entered it.
type orphans struct {
	max, maxOf int // limits: of all, and of those with one peer
	all        list.List
	peers      map[ib.GID]*list.List
	at         map[uint32]*orphan // by LocalID
}

// An orphan is a connection in orphans. It has no pointer to the Conn.
type orphan struct {
	id        uint32
	peer      ib.GID
	all, mine *list.Element
}

func newOrphans(most, mostOf int) orphans {
	return orphans{max: most, maxOf: mostOf, peers: make(map[ib.GID]*list.List), at: make(map[uint32]*orphan)}
}

// add appends a connection. If there are too many now, surplus is the LocalID of the one to drop: the peer's oldest, or else the oldest.
// Otherwise it is 0.
func (o *orphans) add(id uint32, peer ib.GID) (surplus uint32) {
	if o.at[id] != nil {
		return 0
	}
	mine := o.peers[peer]
	if mine == nil {
		mine = list.New()
		o.peers[peer] = mine
	}
	e := &orphan{id: id, peer: peer}
	e.all, e.mine = o.all.PushBack(e), mine.PushBack(e)
	o.at[id] = e
	switch {
	case mine.Len() > o.maxOf:
		return mine.Front().Value.(*orphan).id
	case o.all.Len() > o.max:
		return o.all.Front().Value.(*orphan).id
	}
	return 0
}

// remove removes a connection if it is there.
func (o *orphans) remove(id uint32) {
	e := o.at[id]
	if e == nil {
		return
	}
	delete(o.at, id)
	o.all.Remove(e.all)
	mine := o.peers[e.peer]
	if mine.Remove(e.mine); mine.Len() == 0 {
		delete(o.peers, e.peer)
	}
}

// limit puts a connection into the orphans of its state, and drops another if there are too many. It is called when the connection has lost
// its owner, and when one without an owner has entered TimeWait.
func (m *Manager) limit(c *Conn) {
	var surplus uint32
	switch {
	case c.Owner != nil:
	case c.State == DreqSent:
		surplus = m.leaving.add(c.LocalID, c.Path.DGID)
	case c.State == TimeWait:
		m.leaving.remove(c.LocalID)
		surplus = m.ended.add(c.LocalID, c.Path.DGID)
	}
	if surplus == 0 {
		return
	}
	oldest := m.conns[surplus]
	if m.Dropped != nil {
		m.Dropped(oldest)
	}
	m.forget(oldest)
}
