package rdmacm

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/ib"
)

// A Restorer provides what a client's state names but does not contain.
type Restorer interface {
	// Signal returns the signal of a channel, in the condition in which it was: raised if the state says so. It belongs to the
	// channel from then on.
	Signal(channel uint32) (Signal, error)
	// Account returns the account to charge for the client's objects; nil: none.
	Account() *budget.Account
}

// Thaw restores the state that belongs to no client. The device is new, and its clients are restored after it. After an error the
// device is of no use.
func (a *CMA) Thaw(st *CMAState) error {
	if len(a.clients) != 0 {
		return fmt.Errorf("the rdma_cm device already has %d clients", len(a.clients))
	}
	if st.NextPort < firstEphemeral || st.NextPort > lastEphemeral {
		return fmt.Errorf("the next port to search is %d", st.NextPort)
	}
	if err := a.manager.Thaw(a.now(), &st.Manager); err != nil {
		return err
	}
	a.nextPort, a.turns = st.NextPort, st.Turns
	return nil
}

// ThawClient restores a client. It sends no message and raises no signal. After an error there is no such client. It runs on the loop.
//
// The caller then continues what needs more than the state:
//
//   - a channel with a mailbox: Foresee, and Stock (nil if it puts no more events on the shelf) before the client's first command
//   - IDs whose addresses are being resolved (Resolving): package ucma resolves them again
//   - the rules of the NIC: nic.NIC.Rejudge, because they may be other rules than before
func (a *CMA) ThawClient(st *ClientState, r Restorer) (*Client, error) {
	c := a.NewClient(st.Pid, st.Program)
	c.UID, c.Established = st.UID, st.Established
	c.SetAccount(r.Account())
	if err := c.thaw(st, r); err != nil {
		c.discard()
		return nil, err
	}
	a.judged = a.nic.Generation() - 1 // so that Rejudge checks the client's connections
	return c, nil
}

func (c *Client) thaw(st *ClientState, r Restorer) error {
	for i := range st.Channels {
		if err := c.thawChannel(&st.Channels[i], r); err != nil {
			return fmt.Errorf("event channel %d: %w", st.Channels[i].Name, err)
		}
	}
	for i := range st.IDs {
		if err := c.thawID(&st.IDs[i]); err != nil {
			return fmt.Errorf("identifier %d: %w", st.IDs[i].Name, err)
		}
	}
	for i := range st.Groups {
		if err := c.thawGroup(&st.Groups[i]); err != nil {
			return fmt.Errorf("group %d: %w", st.Groups[i].Name, err)
		}
	}
	for i := range st.Channels {
		if err := c.thawEvents(&st.Channels[i]); err != nil {
			return fmt.Errorf("events of channel %d: %w", st.Channels[i].Name, err)
		}
	}
	for _, v := range st.Vacant {
		if v.Age < 0 || len(c.cma.vacant) >= maxVacant {
			return fmt.Errorf("port %d: closed %d ns ago, as one of many", v.Port, v.Age)
		}
		c.cma.vacant[portKey{v.Space, v.Port}] = vacancy{c, c.cma.now() - ib.Time(min(v.Age, int64(renewal)))}
	}
	if max(st.NextChannel, st.NextID, st.NextGroup) >= maxNames {
		return fmt.Errorf("the next numbers are %d, %d and %d", st.NextChannel, st.NextID, st.NextGroup)
	}
	c.channels.next, c.ids.next, c.groups.next = st.NextChannel, st.NextID, st.NextGroup
	return nil
}

// discard removes a client of which only a part was restored, without messages and events.
func (c *Client) discard() {
	for name, id := range c.ids.items {
		if id.conn != nil {
			c.cma.manager.Drop(id.conn)
		}
		id.release()
		c.cma.hushed(id)
		if id.counted {
			c.ids.account.Refund(connectionBill)
		}
		c.ids.remove(name)
	}
	for name := range c.groups.items {
		c.groups.remove(name)
	}
	for name, ch := range c.channels.items {
		ch.signal.Close()
		c.channels.remove(name)
	}
	delete(c.cma.clients, c)
	c.cma.leave(c)
}

// put adds an object with a number.
func (t *table[T]) put(name uint32, v T) error {
	if t.items == nil {
		t.items = make(map[uint32]T)
	}
	if name >= maxNames {
		return errors.New("the number is too large")
	}
	if _, taken := t.items[name]; taken {
		return errors.New("the number is taken")
	}
	if err := t.account.Charge(t.price); err != nil {
		return err
	}
	t.items[name] = v
	return nil
}

func (c *Client) thawChannel(st *ChannelState, r Restorer) (err error) {
	ch := &Channel{Name: st.Name, client: c, ids: make(map[*ID]struct{}), raised: st.Raised}
	if ch.signal, err = r.Signal(st.Name); err != nil {
		return err
	}
	if err := c.channels.put(st.Name, ch); err != nil {
		ch.signal.Close()
		return err
	}
	if s := st.Shelf; s != nil {
		if s.Next > s.Laid || s.Laid-s.Next > uint64(len(st.Events)) {
			return fmt.Errorf("of %d events, numbers %d up to %d are on the shelf", len(st.Events), s.Next, s.Laid)
		}
		ch.shelf = shelf{next: s.Next, laid: s.Laid, thawed: true}
	}
	return nil
}

func (c *Client) thawID(st *IDState) (err error) {
	a := c.cma
	id := &ID{
		Name: st.Name, serial: st.Serial, cma: a, client: c, ch: c.channels.items[st.Channel], uid: st.UID, ps: st.Space, qpType: st.QPType,
		state: st.State, turn: st.Turn, device: st.Device, reuse: st.Reuse, afOnly: st.AFOnly, afOnlySet: st.AFOnlySet, tos: st.TOS,
		ackTimeout: st.AckTimeout, life: st.Life, up: st.Up, seq: st.PSN, qpn: st.QPN, qkey: st.QKey, srq: st.SRQ,
		backlog: int(st.Backlog), passive: st.Passive, reported: st.Reported,
	}
	if err := errors.Join(st.check(), thawAddr(st.Src, &id.src), thawAddr(st.Dst, &id.dst), thawGID(st.SGID, &id.sgid), thawGID(st.DGID, &id.dgid)); err != nil {
		return err
	}
	if id.ch == nil {
		return fmt.Errorf("there is no event channel %d", st.Channel)
	}
	if st.Bound && id.src.Port() == 0 {
		return errors.New("it is bound to port 0")
	}
	if err := c.ids.put(id.Name, id); err != nil {
		return err
	}
	id.ch.ids[id] = struct{}{}
	if st.Counted {
		if err := id.count(); err != nil {
			return err
		}
	}
	if st.Bound {
		id.reclaim()
	}
	if st.Talking {
		a.talks(id)
	}
	if st.State == Resolving {
		id.until = a.now() + ib.Time(min(st.Patience, int64(MaxPatience)))
	}
	if st.Conn == nil {
		return nil
	}
	owner := any(id)
	if st.Orphaned {
		owner = nil
	}
	id.conn, err = a.manager.ThawConn(a.now(), st.Conn, owner)
	return err
}

// check returns why the state cannot be that of an ID.
func (st *IDState) check() error {
	_, known := spaceNames[st.Space]
	switch {
	case !known:
		return fmt.Errorf("unknown port space %#x", st.Space)
	case st.State >= Destroyed:
		return fmt.Errorf("unknown state %d", st.State)
	case st.Bound == (st.State == Idle) && st.State != Connecting && st.State != Disconnected: // a requested ID has no port
		return fmt.Errorf("state %s, with a port: %v", idStates[st.State], st.Bound)
	case st.Conn != nil && st.State != Connecting && st.State != Disconnected:
		return fmt.Errorf("state %s with a connection", idStates[st.State])
	case st.AckTimeout > maxTimeout, st.Life > maxTimeout:
		return fmt.Errorf("timeouts %d and %d", st.AckTimeout, st.Life)
	case st.PSN > 0xffffff:
		return fmt.Errorf("PSN %#x", st.PSN)
	case st.Backlog > maxBacklog:
		return fmt.Errorf("backlog %d", st.Backlog)
	case st.Patience < 0:
		return fmt.Errorf("a resolution that ends in %d ns", st.Patience)
	}
	return nil
}

// reclaim makes a restored ID an owner of its port again, in the order of the binds.
func (id *ID) reclaim() {
	k := portKey{id.space(), id.src.Port()}
	p := id.cma.ports[k]
	if p == nil {
		p = &port{key: k}
		id.cma.ports[k] = p
	}
	at := slices.IndexFunc(p.owners, func(o *ID) bool { return o.turn > id.turn })
	if at < 0 {
		at = len(p.owners)
	}
	p.owners = slices.Insert(p.owners, at, id)
	id.port = p
	id.cma.turns = max(id.cma.turns, id.turn)
}

func (c *Client) thawGroup(st *GroupState) error {
	id := c.ids.items[st.ID]
	if id == nil {
		return fmt.Errorf("there is no identifier %d", st.ID)
	}
	g := &Group{Name: st.Name, id: id, uid: st.UID, reported: st.Reported}
	if err := c.groups.put(g.Name, g); err != nil {
		return err
	}
	id.groups = append(id.groups, g)
	return nil
}

func (c *Client) thawEvents(st *ChannelState) error {
	ch := c.channels.items[st.Name]
	for i := range st.Events {
		s := &st.Events[i]
		e := &event{id: c.ids.items[s.Of], resp: abi.CMEventResp{
			UID: s.UID, ID: s.ID, Event: s.Event, Status: s.Status, ECEVendor: s.ECEVendor, ECEMod: s.ECEMod,
		}}
		if e.id == nil || e.id.ch != ch {
			return fmt.Errorf("there is no identifier %d on the channel", s.Of)
		}
		if copy(e.resp.Param[:], s.Param) < len(s.Param) {
			return fmt.Errorf("an event with %d bytes of parameters", len(s.Param))
		}
		switch s.Event {
		case abi.CMEventConnectRequest:
			e.id.waiting++
			if !s.Child {
				break
			}
			if e.child = c.ids.items[s.ID]; e.child == nil || e.child == e.id {
				return fmt.Errorf("a request with identifier %d", s.ID)
			}
			e.child.pending = true
		case abi.CMEventMulticastJoin, abi.CMEventMulticastError:
			if e.group = c.groups.items[s.ID]; e.group == nil || e.group.id != e.id {
				return fmt.Errorf("an event of group %d", s.ID)
			}
		}
		ch.events = append(ch.events, e)
	}
	return nil
}

func thawAddr(b []byte, a *netip.AddrPort) error {
	if len(b) == 0 {
		return nil
	}
	return a.UnmarshalBinary(b)
}

func thawGID(b []byte, g *ib.GID) error {
	if len(b) != 0 && len(b) != len(g) {
		return fmt.Errorf("a GID of %d bytes", len(b))
	}
	copy(g[:], b)
	return nil
}

// Channel returns the channel with a number; nil if there is none.
func (c *Client) Channel(name uint32) *Channel { return c.channels.items[name] }

// Signal returns the channel's signal.
func (ch *Channel) Signal() Signal { return ch.signal }
