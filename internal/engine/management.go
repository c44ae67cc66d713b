package engine

import (
	"vrdma/internal/memory"
	"vrdma/internal/transport"
	"vrdma/internal/wire"
)

// This file is queue pair 1: management datagrams, which the daemon itself sends and
// receives. No program can have that queue pair, or send from it.

// Management takes management datagrams. Its methods run on the loop.
type Management interface {
	// ReceiveMAD takes a datagram of wire.MADSize bytes, valid during the call.
	ReceiveMAD(from, to transport.GID, mad []byte)
	// Deadline is when Expire has to be called; 0 is never.
	Deadline() transport.Time
	// Expire does what is due.
	Expire()
}

// management is the loop's side of it.
type management struct {
	to    Management
	local queue[datagram] // on their way from us to us
	burst transport.Burst
	span  memory.Span
	in    [wire.MADSize]byte
}

type datagram struct {
	from, to transport.GID
	mad      [wire.MADSize]byte
}

// SetManagement says who takes management datagrams. It is called before Start.
func (e *Engine) SetManagement(m Management) { e.mgmt.to = m }

// SendMAD sends a management datagram, to this host or to another. One to this host
// is delivered later, never from within the call. It runs on the loop.
func (e *Engine) SendMAD(from, to transport.GID, mad []byte) {
	g := &e.mgmt
	local := e.nic.Local(&to)
	if !local && e.port == nil {
		return // nowhere to go: lost, as on a wire
	}
	if !local || e.tap != nil {
		b := e.madBurst(from, to, mad)
		if !local {
			e.port.Send(b) // what cannot be sent is lost
			return
		}
		e.tap.Burst(b)
	}
	d := g.local.push()
	d.from, d.to = from, to
	copy(d.mad[:], mad)
}

func (e *Engine) madBurst(from, to transport.GID, mad []byte) *transport.Burst {
	g := &e.mgmt
	g.span.Reset()
	g.span.Add(mad)
	g.burst = transport.Burst{
		Type: transport.UD, Kind: transport.KindSend, First: true, Last: true, AckReq: true, Src: wire.GSIQP, Dst: wire.GSIQP,
		SGID: from, DGID: to, PKey: 0xffff, MTU: 4096, Packets: 1, Length: uint32(len(mad)), QKey: wire.GSIQKey, Data: &g.span,
	}
	return &g.burst
}

// madsPerPass bounds what one pass delivers.
const madsPerPass = 8

// manage delivers local datagrams and sees to what is due.
func (e *Engine) manage() bool {
	g := &e.mgmt
	work := false
	if e.peers != nil {
		if due := e.peers.Deadline(); due != 0 && due <= e.now {
			e.peers.Expire(e.now)
			work = true
		}
	}
	if g.to == nil {
		return work
	}
	for i := 0; i < madsPerPass && g.local.n > 0; i++ {
		d := *g.local.pop()
		g.to.ReceiveMAD(d.from, d.to, d.mad[:])
		work = true
	}
	if due := g.to.Deadline(); due != 0 && due <= e.now {
		g.to.Expire()
		work = true
	}
	return work
}

// receiveMAD takes a datagram for queue pair 1 from another host. Only a queue pair
// 1 may send one: whoever else does is a program that pretends.
func (e *Engine) receiveMAD(b *transport.Burst) {
	g := &e.mgmt
	if b.Type != transport.UD || b.Kind != transport.KindSend || b.Src != wire.GSIQP || b.QKey != wire.GSIQKey ||
		b.Data == nil || b.Data.Len() != wire.MADSize || !e.nic.Local(&b.DGID) || e.nic.Local(&b.SGID) {
		e.strays += uint64(b.Packets)
		return
	}
	n := 0
	for _, p := range b.Data.Pieces() {
		n += copy(g.in[n:], p.Mem)
	}
	if n != wire.MADSize || e.peers != nil && e.peers.Receive(e.now, b.SGID, b.DGID, g.in[:], e.port.LongID()) {
		return
	}
	if g.to != nil {
		g.to.ReceiveMAD(b.SGID, b.DGID, g.in[:])
	}
}
