package provision

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/client/server"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/netns"
	"vrdma.dev/vrdma/internal/net/roce"
	"vrdma.dev/vrdma/internal/net/routes"
	"vrdma.dev/vrdma/internal/net/vhostuser"
	"vrdma.dev/vrdma/internal/net/vswitch"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// A live upgrade: the next daemon continues with what the NICs of this one have of containers.
//
//	network with way namespace   the namespace, the sockets in it, the watch of its addresses, the rows of the GID table
//	network with way vxlan       the file of the interface, which the kernel keeps with its addresses and its carrier
//
// The next daemon creates the NICs from its store before it gets this state, and their other parts are package server's.

// State is the state of a Provisioner. Package state has the rules for the structs.
type State struct {
	Namespaces []NamespaceState `cbor:"1,keyasint,omitempty"`
	Interfaces []InterfaceState `cbor:"2,keyasint,omitempty"`
	Switch     *vswitch.State   `cbor:"3,keyasint,omitempty"`
	Cards      []CardState      `cbor:"4,keyasint,omitempty"`
	Machines   []GuestState     `cbor:"5,keyasint,omitempty"`
}

// NamespaceState is the connection of a NIC with a network namespace.
type NamespaceState struct {
	NIC     string           `cbor:"1,keyasint,omitempty"` // TENANT/NAME
	Number  ib.NetworkID     `cbor:"2,keyasint,omitempty"` // in this daemon
	Space   netns.SpaceState `cbor:"3,keyasint,omitempty"`
	File    server.FD        `cbor:"4,keyasint,omitempty"` // the namespace
	Netlink server.FD        `cbor:"5,keyasint,omitempty"` // the sockets of routes.Elsewhere
	UDP4    server.FD        `cbor:"6,keyasint,omitempty"`
	UDP6    server.FD        `cbor:"7,keyasint,omitempty"`
	Watch   server.FD        `cbor:"8,keyasint,omitempty"`
	Rows    []RowState       `cbor:"9,keyasint,omitempty"`
	Owed    bool             `cbor:"10,keyasint,omitempty"` // the engine does not have everything that Rows says
}

// RowState is a row of the GID table.
type RowState struct {
	Number  int         `cbor:"1,keyasint,omitempty"`
	Addr    []byte      `cbor:"2,keyasint,omitempty"` // as netip.Addr marshals it
	Name    string      `cbor:"3,keyasint,omitempty"` // the interface
	Index   int         `cbor:"4,keyasint,omitempty"`
	MTU     int         `cbor:"5,keyasint,omitempty"`
	Sockets []server.FD `cbor:"6,keyasint,omitempty"` // the receiving one first; none: the address is loopback
}

// InterfaceState is the interface of a container.
type InterfaceState struct {
	NIC       string    `cbor:"1,keyasint,omitempty"` // TENANT/NAME
	Namespace string    `cbor:"2,keyasint,omitempty"` // the fields of InterfaceConfig
	Cookie    uint64    `cbor:"3,keyasint,omitempty"`
	Interface string    `cbor:"4,keyasint,omitempty"`
	Who       string    `cbor:"5,keyasint,omitempty"`
	Inode     string    `cbor:"6,keyasint,omitempty"`
	Name      string    `cbor:"7,keyasint,omitempty"`
	File      server.FD `cbor:"8,keyasint,omitempty"`
}

// CardState is the socket of a NIC at which virtual machines connect.
type CardState struct {
	NIC      string    `cbor:"1,keyasint,omitempty"` // TENANT/NAME
	Listener server.FD `cbor:"2,keyasint,omitempty"`
}

// GuestState is a virtual machine that has a NIC as a network card, without an agent.
type GuestState struct {
	NIC    string               `cbor:"1,keyasint,omitempty"` // TENANT/NAME
	Who    string               `cbor:"2,keyasint,omitempty"`
	Name   string               `cbor:"3,keyasint,omitempty"`
	Socket server.FD            `cbor:"4,keyasint,omitempty"` // of QEMU
	Conn   *vhostuser.ConnState `cbor:"5,keyasint,omitempty"`
}

// mostRows bounds the rows of a NIC.
const mostRows = mostOutward + mostLoopback

// row checks a row.
func (st *RowState) row() (r row, err error) {
	if err := r.Addr.UnmarshalBinary(st.Addr); err != nil || !r.Addr.IsValid() || st.Number < 0 || st.Number >= mostRows {
		return r, fmt.Errorf("row %d has the address %x", st.Number, st.Addr)
	}
	r.number, r.Name, r.Index, r.MTU = st.Number, st.Name, st.Index, st.MTU
	if r.outward() == (len(st.Sockets) == 0) {
		return r, fmt.Errorf("%v has %d sockets", r.Addr, len(st.Sockets))
	}
	return r, nil
}

// rows checks the rows.
func (st *NamespaceState) rows() ([]row, error) {
	rows := make([]row, 0, len(st.Rows)) // not nil: the addresses have been read
	seen := make(map[netip.Addr]bool)
	for i := range st.Rows {
		r, err := st.Rows[i].row()
		if err != nil {
			return nil, err
		}
		if i > 0 && r.number <= rows[i-1].number || seen[r.Addr] {
			return nil, fmt.Errorf("row %d with %v comes after others", r.number, r.Addr)
		}
		seen[r.Addr] = true
		rows = append(rows, r)
	}
	return rows, nil
}

// Frozen is a Provisioner whose NICs neither enter nor leave containers.
type Frozen struct {
	of    *Provisioner
	nics  []*hostedNIC
	undo  []func()
	files []*os.File // that Resume closes
}

// Freeze keeps the NICs where they are and stops the frames of containers, until Resume. The server is frozen, and no
// declared object changes. The loop still runs. After an error nothing has changed.
func (r *Provisioner) Freeze(ctx context.Context) (*Frozen, error) {
	f := &Frozen{of: r}
	r.mu.Lock()
	for _, s := range r.nics {
		f.nics = append(f.nics, s)
	}
	r.mu.Unlock()
	slices.SortFunc(f.nics, func(a, b *hostedNIC) int { return a.key.Compare(b.key) })
	for _, s := range f.nics {
		var held *sync.Mutex
		switch {
		case s.namespace != nil:
			held = &s.namespace.mu // a change of addresses waits
		case s.ethernet != nil:
			held = &s.ethernet.tapping
		default:
			continue
		}
		if err := hold(ctx, held); err != nil {
			f.Resume()
			return nil, fmt.Errorf("NIC %s is entering or leaving a container: %w", s.nic.Name, err)
		}
		f.undo = append(f.undo, held.Unlock)
		if g := s.ethernet; g != nil {
			f.undo = append(f.undo, func() { g.accepts(time.Time{}) })
			g.accepts(time.Unix(1, 0))
		}
	}
	if r.cfg.Switch != nil {
		resume, err := r.cfg.Switch.Pause(ctx)
		if err != nil {
			f.Resume()
			return nil, err
		}
		f.undo = append(f.undo, resume)
	}
	return f, nil
}

// accepts sets the time until which connections of virtual machines are accepted; zero: without end.
func (g *switchPort) accepts(until time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.listener != nil {
		g.listener.SetDeadline(until) // fails if it is closed
	}
}

// hold locks mu, if that is possible before ctx ends.
func hold(ctx context.Context, mu *sync.Mutex) error {
	for !mu.TryLock() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Microsecond):
		}
	}
	return nil
}

// Resume makes the Provisioner continue.
func (f *Frozen) Resume() {
	for _, u := range slices.Backward(f.undo) {
		u()
	}
	f.undo = nil
	for _, o := range f.files {
		o.Close()
	}
	f.files = nil
}

// Snapshot returns the state. add names a descriptor, which stays open until Resume. It runs on the loop.
func (f *Frozen) Snapshot(add func(fd int) server.FD) (*State, error) {
	st := new(State)
	for _, s := range f.nics {
		if p := s.namespace; p != nil && p.now != nil {
			ns, err := p.freeze(add)
			if err != nil {
				return nil, fmt.Errorf("the network namespace of NIC %s: %w", s.nic.Name, err)
			}
			st.Namespaces = append(st.Namespaces, ns)
		}
		if s.ethernet != nil {
			if err := f.port(st, s.ethernet, add); err != nil {
				return nil, err
			}
		}
	}
	if sw := f.of.cfg.Switch; sw != nil {
		st.Switch = sw.Freeze()
	}
	return st, nil
}

// freeze is the state of a port that is attached. mu is held.
func (p *namespacePort) freeze(add func(fd int) server.FD) (st NamespaceState, err error) {
	some := func(fd int) server.FD {
		if fd < 0 {
			return 0
		}
		return add(fd)
	}
	a := p.now
	st = NamespaceState{NIC: p.nic.Name, Number: p.number, Owed: p.stale}
	var file, watch int
	if st.Space, file, err = a.space.Freeze(); err != nil {
		return st, err
	}
	if watch, err = a.watch.Descriptor(); err != nil {
		return st, err
	}
	netlink, udp4, udp6 := a.there.Sockets()
	st.File, st.Watch, st.Netlink, st.UDP4, st.UDP6 = add(file), add(watch), some(netlink), some(udp4), some(udp6)
	var sockets map[netip.Addr][]int
	if p.udp != nil {
		sockets = p.udp.Sockets()
	}
	for _, r := range p.rows {
		rs := RowState{Number: r.number, Name: r.Name, Index: r.Index, MTU: r.MTU}
		rs.Addr, _ = r.Addr.MarshalBinary() // never fails
		for _, fd := range sockets[r.Addr] {
			rs.Sockets = append(rs.Sockets, add(fd))
		}
		if r.outward() && rs.Sockets == nil {
			return st, fmt.Errorf("%v has no sockets", r.Addr)
		}
		st.Rows = append(st.Rows, rs)
	}
	return st, nil
}

// port adds the state of a port in the switch.
func (f *Frozen) port(st *State, g *switchPort, add func(fd int) server.FD) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	name, t := g.of.key.Path(), g.plugged
	for _, m := range g.machines {
		switch {
		case len(g.machines) > 1 && m.agent:
			return fmt.Errorf("NIC %s of %s: another virtual machine is connected", name, m.who)
		case m.agent:
			continue
		}
		if err := g.machine(st, m, add); err != nil {
			return fmt.Errorf("NIC %s of %s: %w", name, m.who, err)
		}
	}
	if g.listener != nil {
		raw, err := g.listener.SyscallConn()
		if err != nil {
			return err
		}
		if err := raw.Control(func(fd uintptr) { st.Cards = append(st.Cards, CardState{name, add(int(fd))}) }); err != nil {
			return err
		}
	}
	if t == nil {
		return nil
	}
	file, err := netns.DuplicateTap(t.file) // watch may close the tap's own
	if err != nil {
		return nil // the container has just ended
	}
	f.files = append(f.files, file)
	c := &t.config
	st.Interfaces = append(st.Interfaces, InterfaceState{
		NIC: name, Namespace: c.Namespace, Cookie: c.Cookie, Interface: c.Interface, Who: c.Who, Inode: t.inode, Name: t.is.Name,
		File: add(int(file.Fd())),
	})
	return nil
}

// machine adds the state of the only virtual machine that is connected. mu is held.
func (g *switchPort) machine(st *State, m *machine, add func(fd int) server.FD) error {
	card, err := g.port.FreezeGuest(func(fd int) uint32 { return uint32(add(fd)) })
	if err != nil {
		return err
	}
	if card == nil {
		return errors.New("it is connecting, or leaving")
	}
	ms := GuestState{NIC: g.of.key.Path(), Who: m.who, Name: m.name, Conn: card}
	raw, err := m.conn.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { ms.Socket = add(int(fd)) })
	}
	if err != nil {
		return err
	}
	st.Machines = append(st.Machines, ms)
	return nil
}

// A thawing is a Provisioner that gets the state of another daemon's.
type thawing struct {
	of    *Provisioner
	files []*os.File // of the state; nil once used
	last  []func()   // run after the other daemon has ended
}

// Thaw restores the state of another daemon's Provisioner. The NICs exist, and no program has them open. It runs on the
// loop, before the server's Thaw, and sets the files that it takes to nil. Nothing is changed that the other daemon
// sees. When that has ended, the caller calls commit. number returns the number that a network namespace has in this
// daemon. After an error the caller ends the process.
func (r *Provisioner) Thaw(st *State, files []*os.File) (commit func(), number func(ib.NetworkID) ib.NetworkID, err error) {
	t := &thawing{of: r, files: files}
	numbers := make(map[ib.NetworkID]ib.NetworkID)
	number = func(n ib.NetworkID) ib.NetworkID { return cmp.Or(numbers[n], n) }
	if st.Switch != nil && r.cfg.Switch != nil {
		if err := r.cfg.Switch.Thaw(st.Switch); err != nil {
			return nil, nil, err
		}
	}
	for i := range st.Namespaces {
		ns := &st.Namespaces[i]
		p, err := t.namespace(ns)
		if err != nil {
			return nil, nil, fmt.Errorf("NIC %s, which has the addresses of a container: %w", ns.NIC, err)
		}
		numbers[ns.Number] = p.number
	}
	for i := range st.Interfaces {
		is := &st.Interfaces[i]
		if err := t.tap(is); err != nil {
			return nil, nil, fmt.Errorf("NIC %s, which is the interface %s of %s: %w", is.NIC, is.Name, is.Who, err)
		}
	}
	for i := range st.Cards {
		c := &st.Cards[i]
		if err := t.card(c); err != nil {
			return nil, nil, fmt.Errorf("NIC %s, which has a socket for virtual machines: %w", c.NIC, err)
		}
	}
	for i := range st.Machines {
		m := &st.Machines[i]
		if err := t.machine(m); err != nil {
			return nil, nil, fmt.Errorf("NIC %s of %s: %w", m.NIC, m.Who, err)
		}
	}
	t.last = append(t.last, func() {
		r.cfg.Succeeds = false // the control plane, which creates NICs, waits
		r.reopen()
	})
	return t.commit, number, nil
}

// reopen opens the sockets for virtual machines of which a daemon without CardState has left only the files.
func (r *Provisioner) reopen() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.nics {
		if s.ethernet != nil {
			s.ethernet.reopen()
		}
	}
}

// commit lets the goroutines go on that follow containers and forward their frames.
func (t *thawing) commit() {
	for _, f := range t.last {
		f()
	}
}

// find returns the NIC with a name.
func (t *thawing) find(name string) (*hostedNIC, error) {
	of, own, _ := strings.Cut(name, "/")
	if s := t.of.find(tenant.Key{Kind: tenant.KindNIC, Tenant: of, Name: own}); s != nil {
		return s, nil
	}
	return nil, errors.New("it is not here: the next daemon must be started with the same settings and store")
}

// file takes a descriptor.
func (t *thawing) file(fd server.FD) (*os.File, error) {
	if fd == 0 || int(fd) > len(t.files) || t.files[fd-1] == nil {
		return nil, fmt.Errorf("descriptor %d is missing, or used twice", fd)
	}
	f := t.files[fd-1]
	t.files[fd-1] = nil
	return f, nil
}

// number takes a descriptor as a number.
func (t *thawing) number(fd server.FD) (int, error) {
	f, err := t.file(fd)
	if err != nil {
		return -1, err
	}
	defer f.Close()
	return unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
}

// namespace restores the connection of a NIC with a network namespace.
func (t *thawing) namespace(st *NamespaceState) (*namespacePort, error) {
	s, err := t.find(st.NIC)
	if err != nil {
		return nil, err
	}
	p := s.namespace
	if p == nil || p.now != nil {
		return nil, errors.New("its network has another way here, or it is named twice")
	}
	rows, err := st.rows()
	if err != nil {
		return nil, err
	}
	file, err := t.file(st.File)
	if err != nil {
		return nil, err
	}
	space := netns.Thaw(st.Space, file)
	if err := p.shared.take(space.Cookie(), p.nic.Name); err != nil {
		return nil, err
	}
	a := &attachment{shared: p.shared, space: space, maker: netns.NewMaker(space), warned: make(map[string]bool), ended: make(chan struct{})}
	if a.there, err = t.elsewhere(st, space); err != nil {
		return nil, err
	}
	watch, err := t.number(st.Watch)
	if err != nil {
		return nil, err
	}
	if a.watch, err = routes.InheritWatch(watch); err != nil {
		return nil, err
	}
	udp, err := t.sockets(st, rows, a, p.host.cfg.Sockets)
	if err != nil {
		return nil, err
	}
	p.now, p.last, p.rows, p.stale = a, a, rows, st.Owed
	p.routes.now.Store(a.there)
	p.host.cfg.NICs.SetFace(p.nic, faceOf(rows, p.mtu))
	if udp != nil {
		if err := p.addSockets(udp); err != nil {
			return nil, err
		}
	}
	t.last = append(t.last, func() { go p.follow(a, settle) }) // the other daemon may have read of a change
	return p, nil
}

// elsewhere restores the sockets to a namespace's kernel.
func (t *thawing) elsewhere(st *NamespaceState, space *netns.Space) (*routes.Elsewhere, error) {
	fds := [3]int{-1, -1, -1}
	for i, fd := range []server.FD{st.Netlink, st.UDP4, st.UDP6} {
		if fd == 0 {
			continue // a kernel without IPv6
		}
		var err error
		if fds[i], err = t.number(fd); err != nil {
			return nil, err
		}
	}
	return routes.NewElsewhere(fds[0], fds[1], fds[2], func() (int, error) { return openNetlink(space) }), nil
}

// sockets restores the sockets of the rows' addresses; nil: no other host reaches the NIC.
func (t *thawing) sockets(st *NamespaceState, rows []row, a *attachment, o roce.UDPOptions) (*roce.UDP, error) {
	left := make(map[netip.Addr][]int)
	var addrs []netip.Addr
	index := make(map[netip.Addr]int)
	for i, r := range rows {
		for _, fd := range st.Rows[i].Sockets {
			n, err := t.number(fd)
			if err != nil {
				return nil, err
			}
			left[r.Addr] = append(left[r.Addr], n)
		}
		if r.outward() {
			addrs, index[r.Addr] = append(addrs, r.Addr), r.Index
		}
	}
	if len(addrs) == 0 {
		return nil, nil
	}
	o.Socket, o.Interface = a.maker.Socket, func(a netip.Addr) int { return index[a] }
	o.Inherited = func(_ uint16, a netip.Addr) []int { return left[a] }
	return roce.ListenUDP(o, addrs...)
}

// switchPort finds the port of a NIC in the switch.
func (t *thawing) switchPort(name string) (*switchPort, error) {
	s, err := t.find(name)
	if err != nil {
		return nil, err
	}
	if s.ethernet == nil {
		return nil, ErrNoPort
	}
	return s.ethernet, nil
}

// card restores the socket of a NIC for virtual machines.
func (t *thawing) card(st *CardState) error {
	g, err := t.switchPort(st.NIC)
	if err != nil {
		return err
	}
	file, err := t.file(st.Listener)
	if err != nil {
		return err
	}
	defer file.Close()
	l, err := net.FileListener(file)
	if err != nil {
		return err
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		l.Close()
		return errors.New("it is no unix socket")
	}
	u.SetUnlinkOnClose(false)
	g.mu.Lock()
	g.listener = u
	g.mu.Unlock()
	t.last = append(t.last, func() { go g.accept(u) })
	return nil
}

// machine restores the network card of a virtual machine.
func (t *thawing) machine(st *GuestState) error {
	g, err := t.switchPort(st.NIC)
	if err != nil {
		return err
	}
	if st.Conn == nil {
		return errors.New("it has no state")
	}
	file, err := t.file(st.Socket)
	if err != nil {
		return err
	}
	defer file.Close()
	c, err := net.FileConn(file)
	if err != nil {
		return err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return errors.New("its connection is no unix socket")
	}
	m := &machine{who: st.Who, name: st.Name, conn: u}
	_, serve, err := g.thaw(m, new(vhostuser.Device), st.Conn, func(fd uint32) (int, error) { return t.number(server.FD(fd)) })
	if err != nil {
		return err
	}
	t.last = append(t.last, func() {
		go func() {
			defer u.Close()
			if err := serve(); err != nil {
				g.host.cfg.Log.Warn("a virtual machine cannot have a NIC, or not any more", "nic", st.NIC, "why", err)
			}
		}()
	})
	return nil
}

// thaw restores a machine, as attach serves it. serve is the rest of attach.
func (g *switchPort) thaw(m *machine, d *vhostuser.Device, st *vhostuser.ConnState, file func(uint32) (int, error)) (c *vhostuser.Conn, serve func() error, err error) {
	g.follow(m, d)
	c, on, err := g.port.ThawGuest(m.conn, d, st, file)
	if err != nil {
		return nil, nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.machines = append(g.machines, m)
	if c.Runs() {
		g.runs, g.who = m, m.who
	}
	return c, func() error {
		defer g.leave(m)
		return on()
	}, nil
}

// ThawCard is vhostuser.Thaw for the card of a virtual machine with an agent. serve is ServeCard from then on. The Provisioner is thawed, and
// the other daemon has not ended.
func (r *Provisioner) ThawCard(k tenant.Key, u *net.UnixConn, d *vhostuser.Device, st *vhostuser.ConnState, file func(uint32) (int, error)) (c *vhostuser.Conn, serve func() error, err error) {
	if s := r.find(k); s != nil && s.ethernet != nil {
		return s.ethernet.thaw(describe(u, true), d, st, file)
	}
	c, start, err := vhostuser.Thaw(u, d, st, file)
	if err != nil {
		return nil, nil, err
	}
	return c, func() error { return c.Continue(start) }, nil
}

// tap restores the interface of a container.
func (t *thawing) tap(st *InterfaceState) error {
	g, err := t.switchPort(st.NIC)
	if err != nil {
		return err
	}
	file, err := t.file(st.File)
	if err != nil {
		return err
	}
	if _, err := netns.TapName(file); err != nil {
		return err
	}
	is := &tap{
		config: InterfaceConfig{Namespace: st.Namespace, Cookie: st.Cookie, Interface: st.Interface, Who: st.Who}, inode: st.Inode,
		is: g.interfaceOf(), file: file, gone: make(chan struct{}),
	}
	is.is.Name = st.Name
	t.last = append(t.last, func() {
		if err := g.serveTap(is); err != nil {
			g.host.cfg.Log.Error("a container's interface is not served any more", "nic", st.NIC, "interface", st.Name, "error", err)
		}
	})
	return nil
}
