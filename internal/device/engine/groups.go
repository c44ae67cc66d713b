package engine

import (
	"errors"
	"net/netip"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/roce"
)

// Multicast. A group is a NIC's own, as an address is: the Resolver says which group of the
// underlay it is there. NICs that it says the same of are members of one group: a datagram
// goes to the members on this host, in memory, and to the network; what comes from there goes
// to the members. A group that leads nowhere has the members of one NIC.
type groups struct {
	of       map[place]*group       // by the network's number and what the group is called there
	fds      map[int32]bool         // those that are joined on the network: whether each is in ready
	at       map[int32]ib.NetworkID // the sites of those that are joined at one
	ready    queue[int32]
	sent     uint64 // datagrams that went to other hosts
	received uint64 // and that came from there
}

// A group is one of the underlay that NICs of this daemon are members of.
type group struct {
	fd   int32 // -1: it is not joined on the network
	nics []member
}

// A member is a NIC, and what it calls the group.
type member struct {
	card *card
	gid  ib.GID
}

func (g *groups) init() {
	g.of, g.fds, g.at = make(map[place]*group), make(map[int32]bool), make(map[int32]ib.NetworkID)
}

// memberCost is what a member costs at least of its sender's turn, in bytes.
const memberCost = 256

// multicast delivers b to the members on this host and, if there are others, to them.
func (e *Engine) multicast(from *task, b *transport.Burst) {
	if e.net.tap != nil {
		e.net.tap.Burst(b)
	}
	r := &from.route
	if r.stale(from, b) {
		from.find(&b.SGID, &b.DGID)
	}
	n := 0
	if g := e.net.groups.of[r.place()]; g != nil {
		n = e.deliverGroup(g, b)
	} else {
		n = e.deliverMembers(member{from.card, b.DGID}, b)
	}
	e.shared.Scratch().Extra += n * max(int(b.Length), memberCost)
	if r.under == nil {
		return
	}
	copies := r.under.SendGroup(r.network, r.from, r.to, b)
	e.net.groups.sent += uint64(copies)
	// The sender's turn pays for one anyway.
	e.shared.Scratch().Extra += max(copies-1, 0) * max(int(b.Length), memberCost)
}

// deliverGroup gives b to the members of all NICs and returns how many they are.
func (e *Engine) deliverGroup(g *group, b *transport.Burst) (n int) {
	for _, m := range g.nics {
		n += e.deliverMembers(m, b)
	}
	return n
}

// deliverMembers gives b to the members of one NIC and returns how many they are.
func (e *Engine) deliverMembers(m member, b *transport.Burst) int {
	members := m.card.nic.Multicast(m.gid)
	for _, q := range members {
		e.deliver(taskOf(q), b)
	}
	return len(members)
}

// join makes a NIC, of which the first queue pair has joined, a member of a group.
func (e *Engine) join(c *card, gid ib.GID) error {
	w := e.opts.Resolver.Resolve(c.nic, gid)
	if !w.To.IsValid() {
		return nil
	}
	to := place{w.Network, ib.GIDOf(w.To)}
	gs := &e.net.groups
	g := gs.of[to]
	if g == nil {
		g = &group{fd: -1}
		var err error
		if g.fd, err = e.joinNetwork(w.Network, w.To); err != nil {
			return err
		}
		gs.of[to] = g
	}
	// A new slice: a burst may be on its way through the old one.
	g.nics = append(slices.Clone(g.nics), member{c, gid})
	c.groups[gid] = to
	return nil
}

// joinNetwork joins a group on the network, and returns its descriptor; -1: nothing comes
// from there.
func (e *Engine) joinNetwork(n ib.NetworkID, to netip.Addr) (int32, error) {
	a := e.net.of(n)
	if a == nil {
		return -1, nil
	}
	fd, err := a.join(to)
	if err != nil {
		return -1, err
	}
	if fd < 0 {
		return -1, nil
	}
	if err := e.poller.watchSocket(fd); err != nil {
		a.leave(to)
		return -1, err
	}
	e.net.groups.fds[int32(fd)] = false
	e.net.groups.at[int32(fd)] = n
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

// leave ends the membership of a NIC, of which the last queue pair has left.
func (e *Engine) leave(c *card, gid ib.GID) {
	gs := &e.net.groups
	to, ok := c.groups[gid]
	if !ok {
		return
	}
	delete(c.groups, gid)
	g := gs.of[to]
	g.nics = slices.DeleteFunc(slices.Clone(g.nics), func(m member) bool { return m == member{c, gid} })
	if len(g.nics) > 0 {
		return
	}
	delete(gs.of, to)
	if g.fd >= 0 {
		delete(gs.fds, g.fd)
		delete(gs.at, g.fd)
		if a := e.net.of(to.network); a != nil {
			a.leave(to.gid.Addr()) // the poller forgets what is closed
		}
	}
}

// readable notes what the poller says of a group's descriptor, or of none.
func (g *groups) readable(fd int32) {
	if queued, ok := g.fds[fd]; ok && !queued {
		g.fds[fd] = true
		*g.ready.push() = fd
	}
}

// groupsPerPass is of how many groups one pass takes a batch.
const groupsPerPass = 4

// pollGroups takes what has come for groups that are readable, a batch for each, in turns.
func (e *Engine) pollGroups() {
	g := &e.net.groups
	for range min(g.ready.n, groupsPerPass) {
		fd := *g.ready.pop()
		if _, ok := g.fds[fd]; !ok {
			continue // left meanwhile
		}
		a := e.net.of(g.at[fd])
		if a == nil {
			continue // its underlay is closed
		}
		if a.pollGroup(int(fd)) {
			*g.ready.push() = fd
		} else {
			g.fds[fd] = false
		}
	}
}

// receiveGroup takes a burst for a multicast group from another host. Only datagrams for every
// member count. No member answers a mark of congestion: all would at once.
func (e *Engine) receiveGroup(n ib.NetworkID, b *transport.Burst) {
	if b.Type != ib.UD || b.Dst != ib.EveryQP || e.cards.at[place{n, b.SGID}] != nil {
		return
	}
	e.net.groups.received++
	if g := e.net.groups.of[place{n, b.DGID}]; g != nil {
		e.deliverGroup(g, b)
	}
	e.deliverReplies()
}

// rejoin has NICs join again whose network has become one between hosts, or is none any more,
// since they joined: a group is another one there.
func (e *Engine) rejoin() {
	for _, c := range e.cards.of {
		for gid := range c.nic.Groups() {
			now := place{}
			if w := e.opts.Resolver.Resolve(c.nic, gid); w.To.IsValid() {
				now = place{w.Network, ib.GIDOf(w.To)}
			}
			if was := c.groups[gid]; was != now {
				e.leave(c, gid)
				e.join(c, gid) // fails only in the host's own network, which does not change
			}
		}
	}
}
