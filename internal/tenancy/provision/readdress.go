package provision

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/net/netns"
	"vrdma.dev/vrdma/internal/net/roce"
	"vrdma.dev/vrdma/internal/net/routes"
)

// The addresses of a container change while its programs have the NIC open: a network is connected, duplicate address
// detection ends, an administrator calls ip(8). The NIC follows, as the kernel's NICs do. An address keeps its row of
// the GID table. Programs get IBV_EVENT_GID_CHANGE. A queue pair whose address is gone stops sending until its retries
// are exhausted or the address is back.

// A row is a row of the GID table.
type row struct {
	number int
	routes.Interface
}

func (r row) outward() bool { return !r.Addr.IsLoopback() }

const (
	// settle is the wait for more changes, and between two refreshes. A container can make any number of changes: after
	// settleMost of them there is one refresh a second, until the container has been quiet for a while.
	settle     = 100 * time.Millisecond
	settleLong = time.Second
	settleMost = 20
	quiet      = time.Minute
	// readdressRate bounds the changes a second of all containers together: for each the loop visits all NICs.
	readdressRate = 10
)

// errGone: the NIC was detached.
var errGone = errors.New("the container has left the NIC")

// openWatch opens the notification of changes.
func openWatch(space *netns.Space) (*routes.Watch, error) {
	fd, err := openNetlink(space)
	if err != nil {
		return nil, err
	}
	return routes.NewWatch(fd)
}

// follow keeps the NIC's addresses those of its container until the NIC is detached. It retries what fails, with
// growing pauses. It looks at them after the time again, even without a change; 0: it does not.
func (p *namespacePort) follow(st *attachment, again time.Duration) {
	defer st.close()
	stale := false
	for n := 0; ; n++ {
		start, pause := time.Now(), settle
		if st.watch.Wait(again) != nil {
			return
		}
		if time.Since(start) >= quiet {
			n = 0
		}
		if n >= settleMost {
			pause = settleLong
		}
		if st.watch.Pause(pause) != nil {
			return
		}
		changed, err := p.look(st)
		if errors.Is(err, errGone) {
			return
		}
		if changed || stale {
			rerr := p.nic.Tree.Renew()
			stale, err = rerr != nil, errors.Join(err, rerr)
		}
		if err == nil {
			again = 0
			continue
		}
		p.warnOnce(st, "a NIC does not follow the addresses of its container; this is tried again", "why", err)
		again = min(max(2*again, settleLong), quiet)
	}
}

// warnOnce logs a text once for each attachment, because the container can cause it any number of times.
func (p *namespacePort) warnOnce(st *attachment, text string, more ...any) {
	if !st.warned[text] {
		st.warned[text] = true
		p.host.cfg.Log.Warn(text, append([]any{"nic", p.nic.Name}, more...)...)
	}
}

// look sets the NIC's addresses to those that its container has now, and reports whether they have changed. With an
// error some of them may have been set.
func (p *namespacePort) look(st *attachment) (changed bool, err error) {
	all, err := st.there.Addresses()
	if err != nil {
		return false, fmt.Errorf("the addresses of the container are not known: %w", err)
	}
	p.mu.Lock()
	was, owed := p.rows, p.stale // only this goroutine changes them, except detach
	p.mu.Unlock()
	use, over := bounded(was, usable(all))
	if over > 0 {
		p.warnOnce(st, "a container has more addresses than a NIC: the last ones are left out", "used", len(use), "left out", over)
	}
	if was != nil {
		if !owed && slices.Equal(arrange(was, use), was) {
			return false, nil
		}
		if !st.watch.Sleep(p.shared.pace.Wait(time.Now())) {
			return false, errGone
		}
	}
	fresh, gone := differ(was, use)
	more, use, left := p.openSockets(st, was == nil, fresh, use)
	if left != nil && was == nil {
		return false, left
	}
	rows := arrange(was, use)
	if was != nil && !owed && slices.Equal(rows, was) {
		return false, left
	}
	var regroup [2]bool
	for f := range regroup {
		regroup[f] = owed || !within(was, rows, f) || !within(rows, was, f)
	}
	if err = p.reserveGroups(st, regroup); err == nil {
		changed, err = p.commit(st, rows, regroup, more, gone)
	}
	if err != nil && more != nil {
		more.Close() // the engine does not have these sockets
	}
	return changed, errors.Join(left, err)
}

// reserveGroups opens sockets for the multicast groups that are joined again, because the loop does not wait for a
// helper process.
func (p *namespacePort) reserveGroups(st *attachment, families [2]bool) error {
	if families == [2]bool{} {
		return nil
	}
	var count [2]int
	if err := p.host.onLoop(func() { count = p.host.cfg.Engine.CountGroups(p.nic.Device) }); err != nil {
		return err
	}
	for f := range count {
		if count[f] = min(count[f], roce.MaxGroups); !families[f] {
			count[f] = 0
		}
	}
	return st.maker.Reserve(count[0], count[1])
}

// commit sets the rows of the NIC and the sockets of the engine.
func (p *namespacePort) commit(st *attachment, rows []row, regroup [2]bool, more *roce.UDP, gone []netip.Addr) (changed bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now != st {
		return false, errGone
	}
	face := faceOf(rows, p.mtu)
	perr := p.host.onLoop(func() {
		old := *p.nic.Device.Face()
		if p.rows == nil || !slices.Equal(p.rows, rows) {
			p.host.cfg.NICs.SetFace(p.nic, face)
		}
		switch {
		case p.udp != nil:
			err = p.host.cfg.Engine.Readdress(p.nic.Device, p.number, regroup, func() []int { return moveSockets(p.udp, rows, more, gone) })
		case more != nil:
			if err = p.addSockets(more); err != nil {
				p.host.cfg.NICs.SetFace(p.nic, old)
				return
			}
		}
		p.rows, p.stale, changed = rows, err != nil, true
	})
	if changed {
		p.host.cfg.Log.Debug("a NIC has other addresses", "nic", p.nic.Name, "addresses", outwardOf(rows), "mtu", 128<<face.MTU)
	}
	return changed, errors.Join(perr, err)
}

// outwardOf are the addresses at which other hosts reach the NIC.
func outwardOf(rows []row) (out []netip.Addr) {
	for _, i := range rows {
		if i.outward() {
			out = append(out, i.Addr)
		}
	}
	return out
}

// within reports whether the interfaces of a's outward addresses of a family are among those of b's.
func within(a, b []row, of int) bool {
	for _, i := range a {
		if i.outward() && family(i.Addr) == of && !slices.ContainsFunc(b, func(j row) bool {
			return j.outward() && family(j.Addr) == of && j.Index == i.Index
		}) {
			return false
		}
	}
	return true
}

// differ returns the outward addresses that are new, and those that are gone.
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

// arrange gives each address a row of the GID table. An address keeps its row. New addresses get the first free rows.
// Loopback addresses give way to them: tools use the first row that fits, and no other host is reached from loopback.
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
	slices.SortStableFunc(rows, func(a, b row) int { return cmp.Compare(a.number, b.number) })
	return rows
}

// faceOf is what a NIC with these rows shows. mtu is that of the network; 0: that of the interfaces.
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

// openSockets opens the sockets of new addresses. An address whose sockets cannot be opened is left out, and the error
// says why: it may be gone again, or a program of the container uses the port. The first time all must succeed.
func (p *namespacePort) openSockets(st *attachment, first bool, fresh []netip.Addr, use []routes.Interface) (all *roce.UDP, out []routes.Interface, left error) {
	if len(fresh) == 0 {
		return nil, use, nil
	}
	o := p.host.cfg.Sockets
	o.Socket = st.maker.Socket
	o.Interface = func(a netip.Addr) int {
		if i := slices.IndexFunc(use, func(i routes.Interface) bool { return i.Addr == a }); i >= 0 {
			return use[i].Index
		}
		return 0
	}
	counts := [2]int{}
	for _, a := range fresh {
		counts[family(a)] += roce.SocketsPerAddress
	}
	for f := range counts {
		if counts[f] > 0 && st.space.Helped() {
			counts[f] += netns.Ahead // for multicast groups, which are joined on the loop
		}
	}
	err := st.maker.Reserve(counts[0], counts[1]) // one helper process for all addresses
	if first {
		if err == nil {
			all, err = roce.ListenUDP(o, fresh...)
		}
		return all, use, err
	}
	out = use
	for _, a := range fresh {
		var one *roce.UDP
		aerr := err
		if aerr == nil {
			one, aerr = roce.ListenUDP(o, a)
		}
		switch {
		case aerr != nil:
			out = slices.DeleteFunc(slices.Clone(out), func(i routes.Interface) bool { return i.Addr == a })
			left = errors.Join(left, fmt.Errorf("%v is left out: %w", a, aerr))
		case all == nil:
			all = one
		default:
			all.Take(one)
		}
	}
	return all, out, left
}

// addSockets gives the engine the first sockets. It runs on the loop with mu held.
func (p *namespacePort) addSockets(first *roce.UDP) error {
	window, flight := first.Windows()
	err := p.host.cfg.Engine.AddPort(p.nic.Device, p.number, roce.NewPort(first), first.Descriptors(), window, flight)
	if err == nil {
		p.udp = first
	}
	return err
}

// moveSockets adds more sockets, which may be nil, to u and closes those of addresses that are gone. It returns the
// descriptors that u has then. It runs on the loop.
func moveSockets(u *roce.UDP, rows []row, more *roce.UDP, gone []netip.Addr) []int {
	if more != nil {
		u.Take(more)
	}
	for _, a := range gone {
		u.Drop(a)
	}
	for _, i := range rows {
		u.SetInterface(i.Addr, i.Index)
	}
	return u.Descriptors()
}

// usable are the addresses that become GIDs, in the order in which tools should find them, since tools use the first
// that fits. Link-local addresses mean nothing without their interface.
func usable(all []routes.Interface) []routes.Interface {
	out := slices.DeleteFunc(slices.Clone(all), func(i routes.Interface) bool { return i.Addr.IsLinkLocalUnicast() })
	rank := func(i routes.Interface) int {
		r := family(i.Addr)
		if i.Addr.IsLoopback() {
			r += 2
		}
		return r
	}
	slices.SortStableFunc(out, func(a, b routes.Interface) int { return cmp.Compare(rank(a), rank(b)) })
	return slices.CompactFunc(out, func(a, b routes.Interface) bool { return a.Addr == b.Addr })
}

// A NIC has a bounded number of its container's addresses: each outward address has sockets, and the container chooses
// the number.
const (
	mostOutward  = 16
	mostLoopback = 8
)

// bounded returns the first addresses of each kind, and how many are left out. Addresses that have rows come first, so
// that a new address does not replace one in use.
func bounded(was []row, all []routes.Interface) (use []routes.Interface, over int) {
	had := func(i routes.Interface) bool {
		return slices.ContainsFunc(was, func(r row) bool { return r.Addr == i.Addr })
	}
	outward, loopback := mostOutward, mostLoopback
	room := func(i routes.Interface) *int {
		if i.Addr.IsLoopback() {
			return &loopback
		}
		return &outward
	}
	for _, i := range all {
		if had(i) {
			*room(i)--
		}
	}
	for _, i := range all {
		if left := room(i); !had(i) {
			if *left <= 0 {
				over++
				continue
			}
			*left--
		}
		use = append(use, i)
	}
	return use, over
}
