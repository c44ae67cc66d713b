package engine

import (
	"errors"
	"net/netip"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/device/fifo"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/roce"
)

// groups are the multicast groups that NICs of this daemon have joined. A group belongs to a NIC,
// like an address. The Resolver maps it to a group of the underlay, and NICs whose groups map to
// the same one are members of one group. A datagram goes to the members on this host, in memory,
// and to the network. A datagram from the network goes to the members. A group without a group of
// the underlay has the members of one NIC.
type groups struct {
	of       map[netAddr]*group     // by the address in the underlay
	fds      map[int32]bool         // descriptors of groups joined on the network: whether it is in ready
	at       map[int32]ib.NetworkID // the network of such a descriptor
	ready    fifo.Queue[int32]      // readable descriptors
	sent     uint64                 // datagrams to other hosts
	received uint64                 // datagrams from other hosts
}

// A group is one of the underlay.
type group struct {
	fd   int32 // -1: it is not joined on the network
	nics []member
}

// A member is a NIC, and the NIC's own name of the group.
type member struct {
	adapter *adapter
	gid     ib.GID
}

func (g *groups) init() {
	g.of, g.fds, g.at = make(map[netAddr]*group), make(map[int32]bool), make(map[int32]ib.NetworkID)
}

// memberCost is the least cost of a member, in bytes, of the sender's turn.
const memberCost = 256

// multicast sends b to the members on this host and on others.
func (t *task) multicast(b *transport.Burst) {
	n, sc := &t.e.net, t.e.shared.Scratch()
	if n.tap != nil {
		n.tap.Burst(b)
	}
	r := &t.route
	if r.stale(t, b) {
		t.find(&b.SGID, &b.DGID)
	}
	members := 0
	if g := n.groups.of[r.addr()]; g != nil {
		members = g.deliver(b, &t.e.local)
	} else {
		members = member{t.adapter, b.DGID}.deliver(b, &t.e.local)
	}
	sc.Extra += members * max(int(b.Length), memberCost)
	if r.under == nil {
		return
	}
	copies := r.under.SendGroup(r.network, r.from, r.to, b)
	n.groups.sent += uint64(copies)
	// The sender's turn is charged for one copy already.
	sc.Extra += max(copies-1, 0) * max(int(b.Length), memberCost)
}

// deliver gives b to the members of all NICs and returns how many there are.
func (g *group) deliver(b *transport.Burst, l *local) (n int) {
	for _, m := range g.nics {
		n += m.deliver(b, l)
	}
	return n
}

// deliver gives b to the members of one NIC and returns how many there are. A member is on another loop if its session has
// to come to the first loop and cannot be moved yet. Only that loop may touch it, so it loses b.
func (m member) deliver(b *transport.Burst, l *local) int {
	members := m.adapter.nic.Multicast(m.gid)
	for _, q := range members {
		if t := taskOf(q); t.adapter == m.adapter { // each loop has its own record of a NIC
			t.deliver(b)
		} else {
			m.adapter.part.Drop(nic.DropNoQP, b.Packets)
			l.across += uint64(b.Packets)
		}
	}
	return len(members)
}

// join makes a NIC, of which the first queue pair has joined, a member of a group.
func (n *network) join(a *adapter, gid ib.GID) error {
	w := n.opts.Resolver.Resolve(a.nic, gid)
	if !w.To.IsValid() {
		return nil
	}
	to := netAddr{w.Network, ib.GIDOf(w.To)}
	g := n.groups.of[to]
	if g == nil {
		g = &group{fd: -1}
		var err error
		if g.fd, err = n.joinNetwork(w.Network, w.To); err != nil {
			return err
		}
		n.groups.of[to] = g
	}
	// A new slice: a delivery may be iterating over the old one.
	g.nics = append(slices.Clone(g.nics), member{a, gid})
	a.groups[gid] = to
	return nil
}

// join makes a NIC a member of a group. It runs in a command, on the first loop.
func (e *loop) join(n *nic.NIC, gid ib.GID) error { return e.net.join(e.adapters.of[n], gid) }

// leave undoes join.
func (e *loop) leave(n *nic.NIC, gid ib.GID) {
	if a := e.adapters.of[n]; a != nil {
		e.net.leave(a, gid)
	}
}

// joinNetwork joins a group on the network and returns its descriptor; -1: there is none.
func (n *network) joinNetwork(id ib.NetworkID, to netip.Addr) (int32, error) {
	u := n.of(id)
	if u == nil {
		return -1, nil
	}
	fd, err := u.join(to)
	if err != nil {
		return -1, err
	}
	if fd < 0 {
		return -1, nil
	}
	if err := n.poller.watchSocket(fd); err != nil {
		u.leave(to)
		return -1, err
	}
	n.groups.fds[int32(fd)] = false
	n.groups.at[int32(fd)] = id
	return int32(fd), nil
}

// joinErrno is the errno for a program whose group could not be joined.
func joinErrno(err error) error {
	var errno syscall.Errno
	if !errors.Is(err, roce.ErrGroups) && errors.As(err, &errno) && errno != unix.EMFILE && errno != unix.ENFILE {
		return errno
	}
	return syscall.ENOMEM
}

// leave removes a NIC, of which the last queue pair has left, from a group.
func (n *network) leave(a *adapter, gid ib.GID) {
	gs := &n.groups
	to, ok := a.groups[gid]
	if !ok {
		return
	}
	delete(a.groups, gid)
	g := gs.of[to]
	g.nics = slices.DeleteFunc(slices.Clone(g.nics), func(m member) bool { return m == member{a, gid} })
	if len(g.nics) > 0 {
		return
	}
	delete(gs.of, to)
	if g.fd >= 0 {
		delete(gs.fds, g.fd)
		delete(gs.at, g.fd)
		if u := n.of(to.network); u != nil {
			u.leave(to.gid.Addr()) // epoll forgets closed descriptors
		}
	}
}

// readable queues a group's descriptor that the poller reports. It ignores other descriptors.
func (g *groups) readable(fd int32) {
	if queued, ok := g.fds[fd]; ok && !queued {
		g.fds[fd] = true
		*g.ready.Push() = fd
	}
}

// groupsPerPass is the number of groups of which one pass reads a batch.
const groupsPerPass = 4

// pollGroups reads a batch of datagrams of each readable group, round robin.
func (n *network) pollGroups() {
	g := &n.groups
	for range min(g.ready.Len(), groupsPerPass) {
		fd := *g.ready.Pop()
		if _, ok := g.fds[fd]; !ok {
			continue // left meanwhile
		}
		u := n.of(g.at[fd])
		if u == nil {
			continue // its underlay is closed
		}
		if u.pollGroup(int(fd)) {
			*g.ready.Push() = fd
		} else {
			g.fds[fd] = false
		}
	}
}

// receiveGroup takes a burst for a multicast group from another host. It drops all but datagrams
// for every member. Members do not answer a congestion mark: all would at once.
func (n *network) receiveGroup(id ib.NetworkID, b *transport.Burst) {
	if b.Type != ib.UD || b.Dst != ib.EveryQP || n.adapters.at[netAddr{id, b.SGID}] != nil {
		return
	}
	n.groups.received++
	if g := n.groups.of[netAddr{id, b.DGID}]; g != nil {
		g.deliver(b, n.local)
	}
	n.local.deliverReplies()
}

// rejoin makes NICs join their groups again where the group's address in the underlay has
// changed: their network has become one between hosts, or has ceased to be one.
func (n *network) rejoin() {
	for _, a := range n.adapters.of {
		for gid := range a.nic.Groups() {
			now := netAddr{}
			if w := n.opts.Resolver.Resolve(a.nic, gid); w.To.IsValid() {
				now = netAddr{w.Network, ib.GIDOf(w.To)}
			}
			if was := a.groups[gid]; was != now {
				n.leave(a, gid)
				n.join(a, gid) // fails only in the host's own network, which does not change
			}
		}
	}
}
