package rdmacm

import (
	"bytes"
	"cmp"
	"net/netip"
	"slices"

	"vrdma.dev/vrdma/internal/cm"
	"vrdma.dev/vrdma/internal/ib"
)

// Freeze returns the state that belongs to no client. It changes nothing and runs on the loop.
func (a *CMA) Freeze() *CMAState {
	owned := make(map[*cm.Conn]struct{})
	for c := range a.clients {
		for _, id := range c.ids.items {
			owned[id.conn] = struct{}{}
		}
	}
	without := func(c *cm.Conn) bool { _, has := owned[c]; return !has }
	return &CMAState{NextPort: a.nextPort, Turns: a.turns, Manager: a.manager.Freeze(a.now(), without)}
}

// Freeze returns the state of the client. It runs on the loop. Afterwards the client may take events from its shelf, but nothing else
// may happen to the client until its state is restored or given up.
func (c *Client) Freeze() *ClientState {
	for _, ch := range c.channels.items {
		ch.settle()
	}
	st := &ClientState{
		Pid: c.Pid, UID: c.UID, Program: c.Program, Established: c.Established,
		NextChannel: c.channels.next, NextID: c.ids.next, NextGroup: c.groups.next,
	}
	for _, name := range c.channels.names() {
		st.Channels = append(st.Channels, c.channels.items[name].freeze())
	}
	for _, name := range c.ids.names() {
		st.IDs = append(st.IDs, c.ids.items[name].freeze())
	}
	for _, name := range c.groups.names() {
		g := c.groups.items[name]
		st.Groups = append(st.Groups, GroupState{Name: g.Name, ID: g.id.Name, UID: g.uid, Reported: g.reported})
	}
	now := c.cma.now()
	for k, v := range c.cma.vacant {
		if v.of == c && now-v.at < renewal {
			st.Vacant = append(st.Vacant, VacantState{Space: k.ps, Port: k.port, Age: int64(now - v.at)})
		}
	}
	slices.SortFunc(st.Vacant, func(a, b VacantState) int {
		return cmp.Or(cmp.Compare(a.Space, b.Space), cmp.Compare(a.Port, b.Port))
	})
	return st
}

// names returns the numbers in use, in order.
func (t *table[T]) names() []uint32 {
	names := make([]uint32, 0, len(t.items))
	for name := range t.items {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (ch *Channel) freeze() ChannelState {
	st := ChannelState{Name: ch.Name, Raised: ch.raised}
	for _, e := range ch.events {
		r := &e.resp
		st.Events = append(st.Events, EventState{
			Of: e.id.Name, Child: e.child != nil && ch.client.ids.items[e.child.Name] == e.child, UID: r.UID, ID: r.ID, Event: r.Event,
			Status: r.Status, Param: bytes.Clone(bytes.TrimRight(r.Param[:], "\x00")), ECEVendor: r.ECEVendor, ECEMod: r.ECEMod,
		})
	}
	if s := &ch.shelf; s.Shelf != nil || s.thawed {
		st.Shelf = &ShelfState{Next: s.next, Laid: s.laid}
	}
	return st
}

func (id *ID) freeze() IDState {
	a := id.cma
	st := IDState{
		Name: id.Name, Serial: id.serial, Channel: id.ch.Name, UID: id.uid, Space: id.ps, QPType: id.qpType, State: id.state,
		Src: freezeAddr(id.src), Dst: freezeAddr(id.dst), Bound: id.port != nil, Turn: id.turn,
		Device: id.device, SGID: freezeGID(id.sgid), DGID: freezeGID(id.dgid),
		Reuse: id.reuse, AFOnly: id.afOnly, AFOnlySet: id.afOnlySet, TOS: id.tos, AckTimeout: id.ackTimeout, Life: id.life,
		Counted: id.counted, Up: id.up, PSN: id.seq, QPN: id.qpn, QKey: id.qkey, SRQ: id.srq, Backlog: uint32(id.backlog), Passive: id.passive,
		Reported: id.reported,
	}
	_, st.Talking = a.talking[id.dgid][id]
	if id.conn != nil {
		st.Conn, st.Orphaned = a.manager.FreezeConn(a.now(), id.conn), id.conn.Owner == nil
	}
	if id.state == Resolving {
		st.Patience = int64(max(id.until-a.now(), 0))
	}
	return st
}

func freezeAddr(a netip.AddrPort) []byte {
	if !a.IsValid() {
		return nil
	}
	b, _ := a.MarshalBinary() // never fails
	return b
}

func freezeGID(g ib.GID) []byte {
	if g == (ib.GID{}) {
		return nil
	}
	return g[:]
}
