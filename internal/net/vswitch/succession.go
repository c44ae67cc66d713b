package vswitch

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"vrdma.dev/vrdma/internal/net/vhostuser"
)

// In a live upgrade the switch of the next daemon continues with the counters and flows of this one. Package provision
// hands over the files of the containers' interfaces.
//
// Before the state is read, Pause makes the goroutines stop that read frames of containers. The frames stay in the
// queues of the interfaces, where the next daemon finds them.

// State is the state of a Switch.
type State struct {
	Ports    []PortState    `cbor:"1,keyasint,omitempty"`
	Networks []NetworkState `cbor:"2,keyasint,omitempty"`
}

// PortState is the counters of a port.
type PortState struct {
	NIC      string   `cbor:"1,keyasint,omitempty"`
	Counters []uint64 `cbor:"2,keyasint,omitempty"` // in the order of Counters.all; a newer format appends
}

// NetworkState is the flows of a network that rules have allowed: without them the replies to a connection would be
// refused if the rules allow only one direction.
type NetworkState struct {
	Name  string `cbor:"1,keyasint,omitempty"`
	Flows []byte `cbor:"2,keyasint,omitempty"` // flowSize bytes each, see flow.put
}

// all are the counters in the order of PortState.Counters, which never changes.
func (c *Counters) all() []*atomic.Uint64 {
	return []*atomic.Uint64{
		&c.SentFrames, &c.SentBytes, &c.ReceivedFrames, &c.ReceivedBytes, &c.Spoofed, &c.Denied, &c.Malformed, &c.NoBuffer, &c.NoMember,
		&c.Capped, &c.Time,
	}
}

// flowSize is the size of a flow in a NetworkState: two addresses, two ports, the protocol.
const flowSize = 16 + 16 + 2 + 2 + 1

// put appends a flow.
func (f *flow) put(b []byte) []byte {
	src, dst := f.src.As16(), f.dst.As16()
	b = append(append(b, src[:]...), dst[:]...)
	b = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, f.sport), f.dport)
	return append(b, f.proto)
}

// flowOf is the inverse of put. Frames have no IPv4 addresses that are mapped to IPv6.
func flowOf(b []byte) flow {
	return flow{
		src: netip.AddrFrom16([16]byte(b)).Unmap(), dst: netip.AddrFrom16([16]byte(b[16:])).Unmap(),
		sport: binary.BigEndian.Uint16(b[32:]), dport: binary.BigEndian.Uint16(b[34:]), proto: b[36],
	}
}

// Freeze returns the state of s. It changes nothing.
func (s *Switch) Freeze() *State {
	st := new(State)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.networks {
		seen := make(map[*Port]bool)
		n.mu.RLock()
		for _, p := range n.ports {
			if !seen[p] {
				seen[p] = true
				st.Ports = append(st.Ports, PortState{p.NIC, p.freeze()})
			}
		}
		n.mu.RUnlock()
		if b := n.flows.freeze(); len(b) > 0 {
			st.Networks = append(st.Networks, NetworkState{n.name, b})
		}
	}
	slices.SortFunc(st.Ports, func(a, b PortState) int { return cmp.Compare(a.NIC, b.NIC) })
	slices.SortFunc(st.Networks, func(a, b NetworkState) int { return cmp.Compare(a.Name, b.Name) })
	return st
}

func (c *Counters) freeze() (out []uint64) {
	for _, v := range c.all() {
		out = append(out, v.Load())
	}
	return out
}

func (t *flows) freeze() []byte {
	t.mu.RLock()
	defer t.mu.RUnlock()
	b := make([]byte, 0, len(t.now)*flowSize)
	for f := range t.now {
		b = f.put(b)
	}
	return b
}

// Thaw makes s continue with the state of another switch. Its ports are plugged in already, and what the state says
// about others is dropped.
func (s *Switch) Thaw(st *State) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	ports := make(map[string]*Port)
	for _, n := range s.networks {
		n.mu.RLock()
		for _, p := range n.ports {
			ports[p.NIC] = p
		}
		n.mu.RUnlock()
	}
	for i := range st.Ports {
		if p := ports[st.Ports[i].NIC]; p != nil {
			all := p.all()
			for k, v := range st.Ports[i].Counters {
				if k < len(all) {
					all[k].Store(v)
				}
			}
		}
	}
	for i := range st.Networks {
		o := &st.Networks[i]
		if len(o.Flows)%flowSize != 0 || len(o.Flows)/flowSize > mostFlows {
			return fmt.Errorf("restore the flows of network %s: %d bytes", o.Name, len(o.Flows))
		}
		if n := s.networks[o.Name]; n != nil {
			for b := range slices.Chunk(o.Flows, flowSize) {
				n.flows.add(flowOf(b))
			}
		}
	}
	return nil
}

// A pause is a time in which an attachment reads no frames.
type pause struct{ parked, over chan struct{} }

// rest waits until the pause is over, if there is one. The goroutine that reads frames calls it.
func (a *attachment) rest() {
	if p := a.pause.Load(); p != nil {
		close(p.parked)
		<-p.over
	}
}

// Pause stops the goroutines that read the frames of containers, and the connections and rings of virtual machines, until
// resume is called. Nothing is attached meanwhile. It fails, and changes nothing, if one of them does not stop before ctx
// ends.
func (s *Switch) Pause(ctx context.Context) (resume func(), err error) {
	resumeContainers, err := s.pauseContainers(ctx)
	if err != nil {
		return nil, err
	}
	resumeGuests, err := s.pauseGuests(ctx)
	if err != nil {
		resumeContainers()
		return nil, err
	}
	return func() { resumeGuests(); resumeContainers() }, nil
}

func (s *Switch) pauseContainers(ctx context.Context) (resume func(), err error) {
	var paused []*attachment
	resume = func() {
		for _, a := range paused {
			p := a.pause.Swap(nil)
			a.interrupt(time.Time{}) // fails if the file is closed
			close(p.over)
		}
	}
	for _, a := range s.attachments() {
		if a.interrupt == nil {
			continue
		}
		p := &pause{make(chan struct{}), make(chan struct{})}
		a.pause.Store(p)
		paused = append(paused, a)
		a.interrupt(time.Unix(1, 0))
		select {
		case <-p.parked:
		case <-a.ended:
		case <-ctx.Done():
			resume()
			return nil, errors.New("the frames of a container's interface are still being forwarded")
		}
	}
	return resume, nil
}

// pauseGuests keeps requests of QEMU in their sockets, and then the rings from moving.
func (s *Switch) pauseGuests(ctx context.Context) (resume func(), err error) {
	var undo []func()
	resume = func() {
		for _, f := range slices.Backward(undo) {
			f()
		}
	}
	var guests []*vhostuser.Conn
	for _, g := range s.guests() {
		c := g.conn.Load()
		if c == nil {
			continue // it has just connected, which Frozen refuses
		}
		r := func() {}
		if !c.Paused() { // that of a machine with an agent is
			var err error
			if r, err = c.Pause(ctx); err != nil {
				resume()
				return nil, err
			}
		}
		g.paused.Store(true)
		undo, guests = append(undo, func() { g.paused.Store(false); r() }), append(guests, c)
	}
	// A sender holds its transmit ring while it takes the receive ring of another guest.
	for _, receive := range []bool{false, true} {
		for _, c := range guests {
			for _, r := range c.Rings() {
				if (r.Index%2 == 0) != receive {
					continue
				}
				if err := r.Hold(ctx); err != nil {
					resume()
					return nil, err
				}
				undo = append(undo, r.End)
			}
		}
	}
	return resume, nil
}

// attachments are those of all ports.
func (s *Switch) attachments() (out []*attachment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.networks {
		for _, p := range n.attached() {
			if a := p.behind.Load(); a != nil {
				out = append(out, a)
			}
		}
	}
	return out
}

// guests are those that are connected with all ports.
func (s *Switch) guests() (out []*guest) {
	ports := make(map[*Port]bool) // a port is in ports of its network once for each address
	s.mu.Lock()
	for _, n := range s.networks {
		n.mu.RLock()
		for _, p := range n.ports {
			ports[p] = true
		}
		n.mu.RUnlock()
	}
	s.mu.Unlock()
	for p := range ports {
		out = append(out, p.connected()...)
	}
	return out
}

// FreezeGuest returns the state of the network card of the guest at p, while the switch is paused; nil: there is no guest.
func (p *Port) FreezeGuest(add func(fd int) uint32) (*vhostuser.ConnState, error) {
	list := p.connected()
	switch {
	case len(list) == 0:
		return nil, nil
	case len(list) > 1:
		return nil, errors.New("a second virtual machine is connected, as in a migration on this host")
	}
	c := list[0].conn.Load()
	if c == nil || !list[0].paused.Load() {
		return nil, errors.New("a virtual machine is connecting")
	}
	if c.Ended() {
		return nil, nil
	}
	return c.Freeze(add)
}

// ThawGuest restores the network card of a guest at p, whose QEMU is at a socket. The caller sets the callbacks in d, as for Serve. file
// returns a descriptor, which ThawGuest closes. c.Runs reports whether the guest is attached to the port. serve is Serve for that guest;
// until it is called nothing is changed that another daemon sees.
func (p *Port) ThawGuest(socket *net.UnixConn, d *vhostuser.Device, st *vhostuser.ConnState, file func(uint32) (int, error)) (c *vhostuser.Conn, serve func() error, err error) {
	g, ok := p.admitGuest(socket)
	if !ok {
		return nil, nil, errGuests
	}
	g.device(d)
	c, start, err := vhostuser.Thaw(socket, d, st, file)
	if err != nil {
		return nil, nil, err
	}
	g.connect(c)
	return c, func() error {
		defer p.dismiss(g)
		if c.Runs() && !g.attach() {
			start = func() error { return ErrTaken }
		}
		return c.Continue(start)
	}, nil
}
