package vm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"syscall"
	"time"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/client/server"
	"vrdma.dev/vrdma/internal/client/vm/vmproto"
	"vrdma.dev/vrdma/internal/net/vhostuser"
)

// A live upgrade: the next daemon continues with the connections of QEMU. The guest notices nothing, because the agent's stream of bytes goes
// on where it was, and queues and registered memory are pages of the guest.
//
//	old daemon   Pause: QEMU's requests wait ── server.Freeze ── Freeze: no frame is half handled, nothing is written ── Snapshot
//	next daemon  Thaw: maps the memory, makes the conversations ── server.Thaw: the sessions ── Continue
//
// Frames that arrive meanwhile stay in their socket, and so do rings of doorbells. Events for programs wait in the queue of the link, which is
// part of the state.

// Frozen are Sockets that stand still.
type Frozen struct {
	of   []*Sockets
	undo []func()
}

// Pause keeps QEMU's requests in their sockets, until Resume, and makes the server's goroutines not wait for slow agents. The server is not
// frozen: a request may wait until sessions have ended. After an error nothing has changed.
func Pause(ctx context.Context, list []*Sockets) (*Frozen, error) {
	f := &Frozen{of: list}
	if err := f.each(ctx, f.pause); err != nil {
		f.Resume()
		return nil, err
	}
	return f, nil
}

// Freeze makes Sockets stand still, until Resume. The server is frozen, and so are cards that are connected to the switch. The loop still
// runs.
func (f *Frozen) Freeze(ctx context.Context) error { return f.each(ctx, f.freeze) }

func (f *Frozen) each(ctx context.Context, do func(context.Context, *Sockets) error) error {
	for _, p := range f.of {
		if err := do(ctx, p); err != nil {
			return fmt.Errorf("the virtual machine of NIC %s: %w", p.cfg.NIC, err)
		}
	}
	return nil
}

// Resume makes them continue.
func (f *Frozen) Resume() {
	for _, u := range slices.Backward(f.undo) {
		u()
	}
	f.undo = nil
}

func (f *Frozen) pause(ctx context.Context, p *Sockets) error {
	p.mu.Lock()
	l := p.line
	p.mu.Unlock()
	if l != nil {
		l.link.rush()
		f.undo = append(f.undo, l.link.resume)
	}
	return f.pauseCard(ctx, p)
}

func (f *Frozen) freeze(ctx context.Context, p *Sockets) error {
	if err := f.pauseCard(ctx, p); err != nil { // it may have come since pause
		return err
	}
	// A goroutine inside of the gate may wait until the link has sent more.
	if err := f.hold(ctx, p); err != nil {
		return err
	}
	if err := p.gate.Close(ctx, "a message of its agent", p.interrupt, func() bool { return true }); err != nil {
		return err
	}
	f.undo = append(f.undo, p.gate.Open)
	return f.hold(ctx, p) // another line may have come
}

// pauseCard pauses the card, if nobody else has. The switch holds its rings. The rings of a card that is not connected to it do not move.
func (f *Frozen) pauseCard(ctx context.Context, p *Sockets) error {
	c := p.card.get()
	if c == nil || c.Paused() {
		return nil
	}
	resume, err := c.Pause(ctx)
	if err == nil {
		f.undo = append(f.undo, resume)
	}
	return err
}

// hold stops writing to the line.
func (f *Frozen) hold(ctx context.Context, p *Sockets) error {
	p.mu.Lock()
	l := p.line
	p.mu.Unlock()
	if l == nil {
		return nil
	}
	if err := l.link.hold(ctx); err != nil {
		return err
	}
	f.undo = append(f.undo, l.link.resume)
	return nil
}

// interrupt makes the goroutines that wait inside of the gate leave it.
func (p *Sockets) interrupt() {
	past := time.Unix(1, 0)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.listeners {
		l.SetDeadline(past)
	}
	if p.line != nil {
		p.line.conn.SetReadDeadline(past)
	}
	if p.bells != nil {
		p.bells.SetReadDeadline(past)
	}
}

// Snapshot returns the state. add names a descriptor, which stays open until Resume. It runs on the loop, after the server's Snapshot, while
// nothing else moves.
func (f *Frozen) Snapshot(add func(fd int) server.FD) (list []State, err error) {
	for _, p := range f.of {
		s := snapshot{p: p, add: add}
		st, err := s.sockets()
		if err != nil {
			return nil, fmt.Errorf("the virtual machine of NIC %s: %w", p.cfg.NIC, err)
		}
		list = append(list, *st)
	}
	return list, nil
}

// A snapshot is the reading of a state.
type snapshot struct {
	p   *Sockets
	add func(fd int) server.FD
}

// file adds the descriptor of a connection; 0 if it is closed.
func (s *snapshot) file(c syscall.Conn) (fd server.FD) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	if raw.Control(func(of uintptr) { fd = s.add(int(of)) }) != nil {
		return 0
	}
	return fd
}

// open reports whether a connection is open.
func (s *snapshot) open(c syscall.Conn) bool {
	raw, err := c.SyscallConn()
	return err == nil && raw.Control(func(uintptr) {}) == nil
}

// end adds the descriptor of an end of a conversation; 0 if it is closed.
func (s *snapshot) end(c *protocol.Conn) server.FD {
	fd, err := c.Descriptor()
	if err != nil {
		return 0
	}
	return s.add(fd)
}

func (s *snapshot) sockets() (*State, error) {
	p := s.p
	p.mu.Lock()
	defer p.mu.Unlock()
	st := &State{NIC: p.cfg.NIC}
	for _, l := range p.listeners {
		fd := s.file(l)
		if fd == 0 {
			return nil, net.ErrClosed
		}
		st.Listeners = append(st.Listeners, fd)
	}
	if l := p.line; l != nil && (p.machine != nil || s.open(l.conn)) {
		st.Line = &LineState{Socket: s.file(l.conn), Unread: slices.Clone(l.r.Unread()), Unsent: l.link.unsent()}
		if g := l.next; g != nil {
			st.Line.Next = &GreetingState{g.Nonce[:], g.Version, g.Name}
		}
	}
	if p.bells != nil {
		st.Bell = s.file(p.bells)
	}
	c := p.card.get()
	switch {
	case p.net == nil:
	case c == nil:
		return nil, errors.New("it is connecting")
	case !c.Ended():
		if st.Net = s.file(p.net); st.Net != 0 {
			card, err := c.Freeze(func(fd int) uint32 { return uint32(s.add(fd)) })
			if err != nil {
				return nil, err
			}
			st.Card = card
		}
	}
	if p.machine == nil {
		return st, nil
	}
	var now *vhostuser.Memory
	if st.Card != nil {
		if now = c.Memory(); now != nil {
			defer now.Release()
		}
	}
	var err error
	st.Guest, err = s.guest(p.machine, now)
	return st, err
}

// guest is the state of a guest. now is the memory that the card has; nil: none.
func (s *snapshot) guest(m *guest, now *vhostuser.Memory) (*GuestState, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tree.mu.Lock()
	defer m.tree.mu.Unlock()
	st := &GuestState{
		Name: m.name, Workload: m.workload, Handles: m.handles.Load(), Told: m.told, Ending: m.ending,
		Tree: maps.Clone(m.tree.sent),
	}
	if err := s.tables(st, m.ram, now); err != nil {
		return nil, err
	}
	for _, id := range slices.Sorted(maps.Keys(m.conns)) {
		c, err := s.conversation(m.conns[id])
		if err != nil {
			return nil, err
		}
		st.Conversations = append(st.Conversations, *c)
	}
	return st, nil
}

// tables adds the tables of the guest's memory, and the regions that the card does not have.
func (s *snapshot) tables(st *GuestState, r *ram, now *vhostuser.Memory) error {
	card, older := make(map[*vhostuser.Region]uint32), make(map[*vhostuser.Region]uint32)
	if now != nil {
		for i, g := range now.Regions() {
			card[g] = uint32(i)
		}
	}
	for _, m := range *r.list.Load() {
		v, ok := m.(*vhostuser.Memory)
		if !ok {
			return fmt.Errorf("its memory is a %T", m)
		}
		var t TableState
		for _, g := range v.Regions() {
			if i, ok := card[g]; ok {
				t.Card = append(t.Card, i)
				continue
			}
			i, ok := older[g]
			if !ok {
				i = uint32(len(st.Regions))
				older[g] = i
				st.Regions = append(st.Regions, g.Freeze(func(fd int) uint32 { return uint32(s.add(fd)) }))
			}
			t.Older = append(t.Older, i)
		}
		st.Tables = append(st.Tables, t)
	}
	return nil
}

func (s *snapshot) conversation(c *conversation) (*ConversationState, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	st := &ConversationState{
		ID: c.id, Pid: c.pid, Near: s.end(c.Conn), Greeted: c.greeted, Process: c.process, Pin: c.pin.state(), Coming: c.coming.state(), Arena: states(c.arena),
		BellPort: c.bellPort, Taken: slices.Sorted(maps.Keys(c.taken)), Recalling: c.recalling, Recalled: c.recalled, Asked: c.asked,
	}
	select {
	case <-c.leaving:
	default:
		st.Far = s.end(c.far)
	}
	for _, r := range c.queue {
		st.Queue = append(st.Queue, RequestState{r.message, r.pin.state()})
	}
	for _, r := range c.returning {
		st.Returning = append(st.Returning, EventState{r.Handle, r.Event[:r.N]})
	}
	for k := range c.sinks {
		st.Sinks = append(st.Sinks, k.state())
	}
	slices.SortFunc(st.Sinks, func(a, b SinkState) int { return int(a.ID) - int(b.ID) })
	if p := c.pages; p != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		if err := p.there(); err != nil {
			c.Close() // the next attempt finds it gone
			return nil, err
		}
		st.Pages, st.Full, st.Refused = states(p.list), p.full, p.told
	}
	return st, nil
}

// state is the state of a sink.
func (s *sink) state() SinkState {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := SinkState{ID: s.id, Sent: s.sent, Held: s.held, Given: s.given}
	for _, e := range s.back {
		st.Back = append(st.Back, EventState{Event: slices.Clone(e.b[:e.n])})
	}
	return st
}

// state is the state of a pin; nil: there is none.
func (p *pin) state() *PinState {
	if p == nil {
		return nil
	}
	return &PinState{p.id, states(p.runs)}
}

func states(runs []vmproto.Run) (out []RunState) {
	for _, r := range runs {
		out = append(out, RunState(r))
	}
	return out
}
