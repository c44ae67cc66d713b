package rack

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"vrdma/internal/link"
	"vrdma/internal/netns"
	"vrdma/internal/nic"
	"vrdma/internal/order"
	"vrdma/internal/routes"
)

// Addresses of a container come and go while its programs have the NIC open: a network is connected, IPv6 has looked for
// duplicates, somebody calls ip(8). The NIC follows, as one of the kernel's does: the row of an address stays the same as long as
// the address does, programs have IBV_EVENT_GID_CHANGE, and a queue pair whose address has gone sends nothing any more, until its retries
// have run out or the address is back.

// A row is one of the GID table.
type row struct {
	number int
	routes.Interface
}

func (r row) outward() bool { return !r.Addr.IsLoopback() }

// settle is how long we wait for more changes, and between two looks. A container can make as many changes as it likes: beyond the first
// so many it is looked at once a second.
const (
	settle     = 100 * time.Millisecond
	settleLong = time.Second
	settleMost = 20
)

// openWatch opens what tells of changes.
func openWatch(space *netns.Space) (*routes.Watch, error) {
	fds, err := space.Open([]netns.Kind{netns.Netlink})
	if err != nil {
		return nil, err
	}
	return routes.NewWatch(fds[0])
}

// followSite has a NIC's addresses be those of its container, until it is detached.
func (r *Rack) followSite(s *slot, w *routes.Watch) {
	t := s.site
	for n := 0; w.Wait() == nil; n++ {
		if n < settleMost {
			time.Sleep(settle)
		} else {
			time.Sleep(settleLong)
		}
		t.mu.Lock()
		if t.watch == w {
			err := r.readdress(s, t.routes.now.Load())
			if err = errors.Join(err, s.nic.Tree.Renew()); err != nil {
				r.warnOnce(s, "a NIC does not follow the addresses of its container", "why", err)
			}
		}
		t.mu.Unlock()
	}
}

// warnOnce logs something that a container can have happen as often as it likes: once while it has the NIC. mu is held.
func (r *Rack) warnOnce(s *slot, text string, more ...any) {
	if !s.site.warned[text] {
		s.site.warned[text] = true
		r.cfg.Log.Warn(text, append([]any{"nic", s.nic.Name}, more...)...)
	}
}

// readdress has a NIC have the addresses that its container has now. mu is held.
func (r *Rack) readdress(s *slot, there *routes.Elsewhere) error {
	t := s.site
	all, err := there.Addresses()
	if err != nil {
		return fmt.Errorf("the addresses of the container are not known: %w", err)
	}
	use, over := bounded(usable(all))
	if over > 0 {
		r.warnOnce(s, "a container has more addresses than a NIC: the last ones are left out", "used", len(use), "left out", over)
	}
	fresh, gone := differ(t.rows, use)
	more, use, err := r.openSockets(s, fresh, use)
	if err != nil {
		return err
	}
	rows := arrange(t.rows, use)
	if slices.Equal(rows, t.rows) && t.rows != nil {
		return nil
	}
	face := faceOf(rows, t.mtu)
	perr := r.onLoop(func() {
		r.cfg.NICs.SetFace(s.nic, face)
		err = r.moveSockets(s, rows, more, gone)
	})
	if err = errors.Join(perr, err); err != nil {
		if more != nil {
			more.Close() // those that the engine has are not its any more
		}
		return err
	}
	t.rows = rows
	var outward []netip.Addr
	for _, i := range rows {
		if i.outward() {
			outward = append(outward, i.Addr)
		}
	}
	r.cfg.Log.Info("a NIC has the network of a container", "nic", s.nic.Name, "addresses", outward, "mtu", 128<<face.MTU)
	return nil
}

// differ is which outward addresses are new, and which are not there any more.
func differ(was []row, now []routes.Interface) (fresh, gone []netip.Addr) {
	for _, i := range now {
		if !i.Addr.IsLoopback() && !slices.ContainsFunc(was, func(r row) bool { return r.Addr == i.Addr }) {
			fresh = append(fresh, i.Addr)
		}
	}
	for _, r := range was {
		if r.outward() && !slices.ContainsFunc(now, func(i routes.Interface) bool { return r.Addr == i.Addr }) {
			gone = append(gone, r.Addr)
		}
	}
	return fresh, gone
}

// arrange gives each address a row of the GID table. One that has a row keeps it. Others have the first rows that are free, but those of loopback
// make room: tools take the first row that fits, and nobody else is reached from there.
func arrange(was []row, use []routes.Interface) []row {
	old := make(map[netip.Addr]int, len(was))
	for _, r := range was {
		old[r.Addr] = r.number
	}
	taken := make(map[int]bool, len(use))
	rows := make([]row, 0, len(use))
	put := func(number int, i routes.Interface) {
		taken[number] = true
		rows = append(rows, row{number, i})
	}
	for _, outward := range []bool{true, false} {
		var others []routes.Interface
		for _, i := range use {
			if i.Addr.IsLoopback() == outward {
				continue
			}
			if n, ok := old[i.Addr]; ok && !taken[n] {
				put(n, i)
			} else {
				others = append(others, i)
			}
		}
		n := 0
		for _, i := range others {
			for taken[n] {
				n++
			}
			put(n, i)
		}
	}
	order.SortStableFunc(rows, func(a, b row) int { return cmp.Compare(a.number, b.number) })
	return rows
}

// faceOf is what a NIC shows that has these. mtu is that which the network says; 0: that of the interfaces.
func faceOf(rows []row, mtu int) nic.Face {
	face := nic.Face{MTU: nic.LargestMTU}
	mtu = cmp.Or(mtu, math.MaxInt)
	outward := false
	for _, i := range rows {
		face.GIDs = append(face.GIDs, nic.GIDEntry{GID: i.Addr.As16(), NetDev: i.Name})
		face.Rows = append(face.Rows, i.number)
		if i.outward() {
			mtu, outward = min(mtu, i.MTU), true
		}
	}
	if outward {
		face.MTU = nic.MTUWithin(mtu)
	}
	return face
}

// openSockets opens those of the new addresses. An address at which none can be opened is left out of use: it may have gone again, or a program
// of the container has the port. Before there is any other, that is an error.
func (r *Rack) openSockets(s *slot, fresh []netip.Addr, use []routes.Interface) (*link.UDP, []routes.Interface, error) {
	t := s.site
	if len(fresh) == 0 {
		return nil, use, nil
	}
	if t.maker == nil {
		counts := [2]int{}
		for _, a := range fresh {
			counts[family(a)] += link.SocketsPerAddress
		}
		maker, err := netns.NewMaker(t.space, counts[0], counts[1])
		if err != nil {
			return nil, nil, err
		}
		t.maker = maker
	}
	o := r.cfg.Sockets
	o.Socket = t.maker.Socket
	o.Interface = func(a netip.Addr) int {
		if i := slices.IndexFunc(use, func(i routes.Interface) bool { return i.Addr == a }); i >= 0 {
			return use[i].Index
		}
		return 0
	}
	if t.rows == nil {
		more, err := link.ListenUDP(o, fresh...)
		return more, use, err
	}
	var all *link.UDP
	for _, a := range fresh {
		one, err := link.ListenUDP(o, a)
		switch {
		case err != nil:
			r.warnOnce(s, "a NIC does not have a new address of its container", "why", err)
			use = slices.DeleteFunc(slices.Clone(use), func(i routes.Interface) bool { return i.Addr == a })
		case all == nil:
			all = one
		default:
			all.Take(one)
		}
	}
	return all, use, nil
}

// moveSockets has the engine use more sockets, which may be nil, and not those of addresses that have gone. It runs on the loop.
func (r *Rack) moveSockets(s *slot, rows []row, more *link.UDP, gone []netip.Addr) error {
	t := s.site
	if t.udp != nil {
		return r.cfg.Engine.ReaddressSite(s.nic.Device, t.number, func() []int {
			for _, a := range gone {
				t.udp.Drop(a)
			}
			if more != nil {
				t.udp.Take(more)
			}
			for _, i := range rows {
				t.udp.SetInterface(i.Addr, i.Index)
			}
			return t.udp.Descriptors()
		})
	}
	if more == nil {
		return nil
	}
	window, flight := r.cfg.Windows(more)
	if err := r.cfg.Engine.AddSite(s.nic.Device, t.number, link.NewPort(more), more.Descriptors(), window, flight); err != nil {
		return err
	}
	t.udp = more
	return nil
}

// usable are the addresses that become GIDs, in the order in which tools should find them: they take the
// first that fits. Link-local ones mean nothing without the interface.
func usable(all []routes.Interface) []routes.Interface {
	out := slices.DeleteFunc(slices.Clone(all), func(i routes.Interface) bool { return i.Addr.IsLinkLocalUnicast() })
	rank := func(i routes.Interface) int {
		r := family(i.Addr)
		if i.Addr.IsLoopback() {
			r += 2
		}
		return r
	}
	order.SortStableFunc(out, func(a, b routes.Interface) int { return cmp.Compare(rank(a), rank(b)) })
	return slices.CompactFunc(out, func(a, b routes.Interface) bool { return a.Addr == b.Addr })
}

// A NIC has at most so many of a container's addresses: each outward one has sockets, and the container chooses how many
// there are.
const (
	mostOutward  = 16
	mostLoopback = 8
)

// bounded are the first of each kind, and how many more there are.
func bounded(all []routes.Interface) (use []routes.Interface, over int) {
	outward, loopback := 0, 0
	for _, i := range all {
		count, most := &outward, mostOutward
		if i.Addr.IsLoopback() {
			count, most = &loopback, mostLoopback
		}
		if *count++; *count > most {
			over++
			continue
		}
		use = append(use, i)
	}
	return use, over
}
