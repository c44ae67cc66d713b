package vm

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/net/vhostuser"
)

// A card is the network card of the guest. Besides traffic of the switch, it tells the daemon which memory the guest has, and
// when the guest is reset, because QEMU reports both to a vhost-user back end.
type card struct {
	mu   sync.Mutex
	conn *vhostuser.Conn // nil: QEMU is not connected
	held atomic.Int32    // see vhostuser.Device
}

// errNoCard means that the guest's memory is unknown.
var errNoCard = errors.New("QEMU has not connected the NIC's network card (-netdev vhost-user), or its driver is not loaded in the guest")

// memory returns the current memory of the guest.
func (k *card) memory() (Memory, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.conn == nil {
		return nil, errNoCard
	}
	if m := k.conn.Memory(); m != nil {
		return m, nil
	}
	return nil, errNoCard
}

// mappingBill returns the charge for a mapping of size bytes: budget.Mappings are of a gibibyte each.
func mappingBill(size uint64) budget.Bill { return budget.Bill{budget.Mappings: 1 + size>>30} }

// serveCard serves the card to QEMU until it disconnects.
func (p *Sockets) serveCard(u *net.UnixConn, who credentials.Caller) {
	if !keep(p, &p.net, u) {
		return
	}
	d := p.device(who)
	p.serveCardBy(func() error { return p.cfg.Host.Card(u, d, p.card.set) })
}

// device describes the card of a guest whose QEMU is who.
func (p *Sockets) device(who credentials.Caller) *vhostuser.Device {
	return &vhostuser.Device{
		Rings: 2, Queues: 1, Kicked: func(*vhostuser.Ring) {}, Held: &p.card.held,
		Unlogged:  true, // the daemon writes to memory that programs in the guest have registered
		Remembers: func(c *vhostuser.Conn) { p.remember(c) },
		Stops:     func(*vhostuser.Conn) { p.Revoke() },
		Map:       func(size uint64) (func(), error) { return p.cfg.Host.Charge(who, mappingBill(size)) },
	}
}

// get returns the connection; nil: there is none.
func (k *card) get() *vhostuser.Conn {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.conn
}

// set sets the connection; nil: there is none.
func (k *card) set(c *vhostuser.Conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.conn = c
}

// serveCardBy serves the card by serve, which waits, and ends what the guest has opened when QEMU has disconnected.
func (p *Sockets) serveCardBy(serve func() error) {
	var err error
	p.gate.Outside(func() { err = serve() })
	p.card.set(nil)
	keep(p, &p.net, nil)
	if m := p.cutOff(); m != nil {
		p.gate.Outside(m.end)
	}
	if err != nil {
		p.cfg.Log.Warn("the network card of a virtual machine was pulled out", "nic", p.cfg.NIC, "why", err)
	}
}

// remember updates the memory of the guest. Pages that programs have pinned stay valid.
func (p *Sockets) remember(c *vhostuser.Conn) {
	p.mu.Lock()
	m := p.machine
	p.mu.Unlock()
	now := c.Memory()
	switch {
	case now == nil:
		p.Revoke()
	case m != nil && !m.remember(now):
		p.cfg.Log.Warn("the memory of a virtual machine has changed too often: its programs lose their devices", "nic", p.cfg.NIC, "machine", m.name, "times", mostTables)
		p.Revoke()
	case m != nil:
	default:
		now.Release()
	}
}
