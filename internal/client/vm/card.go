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

// A card is the network card of the machine, which carries what the switch has for it, or nothing. It is there
// also because QEMU tells the back end of one
// which memory the machine has, and when the machine is reset.
type card struct {
	mu   sync.Mutex
	conn *vhostuser.Conn // nil: QEMU is not there
	held atomic.Int32    // see vhostuser.Device
}

// errNoCard is why there is no memory.
var errNoCard = errors.New("QEMU has not connected the NIC's network card (-netdev vhost-user), or its driver is not loaded in the machine")

// memory is that of the machine as it is now.
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

// mappingBill returns what a mapping of so many bytes takes: budget.Mappings are of a gibibyte each.
func mappingBill(size uint64) budget.Bill { return budget.Bill{budget.Mappings: 1 + size>>30} }

// serveCard serves the card to QEMU until it goes.
func (p *Port) serveCard(u *net.UnixConn, who credentials.Caller) {
	if !p.keep(&p.net, u) {
		return
	}
	defer p.keep(&p.net, nil)
	k := &p.card
	d := vhostuser.Device{
		Rings: 2, Queues: 1, Kicked: func(*vhostuser.Ring) {}, Held: &k.held,
		Remembers: func(c *vhostuser.Conn) { p.remember(c) },
		Stops:     func(*vhostuser.Conn) { p.Revoke() },
		Map:       func(size uint64) (func(), error) { return p.cfg.Host.Charge(who, mappingBill(size)) },
	}
	err := p.cfg.Host.Card(u, &d, func(c *vhostuser.Conn) {
		k.mu.Lock()
		k.conn = c
		k.mu.Unlock()
	})
	k.mu.Lock()
	k.conn = nil
	k.mu.Unlock()
	p.Revoke()
	if err != nil {
		p.cfg.Log.Warn("the network card of a virtual machine was pulled out", "nic", p.cfg.NIC, "why", err)
	}
}

// remember takes note of the memory that the machine has now. Programs keep what they have pinned,
// which stays where it is.
func (p *Port) remember(c *vhostuser.Conn) {
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
