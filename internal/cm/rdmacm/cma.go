package rdmacm

import (
	"net/netip"
	"syscall"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/cm"
	"vrdma.dev/vrdma/internal/device/fault"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/wire"
)

// Link sends management datagrams; the engine implements it.
type Link interface {
	// SendMAD sends mad from queue pair 1 at one of our addresses to queue pair 1 at another. It keeps no reference to mad and delivers
	// nothing before it returns.
	SendMAD(from, to ib.GID, mad []byte)
	// Due reports that Deadline may be as early as at.
	Due(at ib.Time)
	// Now returns the loop's time.
	Now() ib.Time
}

// CMA is the rdma_cm device of one NIC.
type CMA struct {
	nic     *nic.NIC
	link    Link
	manager *cm.Manager
	ports   map[portKey]*port
	clients map[*Client]struct{}
	vacant  map[portKey]vacancy // ports whose listener was just closed
	// nextPort is the start of the search for a free port.
	nextPort uint16
	// turns is the number of binds so far.
	turns uint64
	// Notice is called for connections, on the loop; may be nil. It is set before the device is used.
	Notice func(Notice)
	// Crowded is called once, on the loop, when an ended connection is forgotten early because there are too many; may be nil. It is set
	// before the device is used. peer is the address of that connection's peer.
	Crowded func(peer netip.Addr)
	crowded bool // Crowded was called

	// For policy, see guard.go.
	talking map[ib.GID]map[*ID]struct{} // UD IDs whose peer has accepted, by peer
	judged  uint32                      // nic.Generation at the last policy check
	old     []*ID                       // IDs to check again
}

// New returns the device.
func New(n *nic.NIC, l Link) *CMA {
	a := &CMA{nic: n, link: l, ports: make(map[portKey]*port), clients: make(map[*Client]struct{}), vacant: make(map[portKey]vacancy), talking: make(map[ib.GID]map[*ID]struct{}), judged: n.Generation()}
	n.SetConnections(a)
	a.nextPort = firstEphemeral + uint16(n.Random()%(lastEphemeral-firstEphemeral))
	a.manager = cm.New(cm.Config{GUID: n.NodeGUID, Random: n.Random, Env: a, Due: l.Due, Changed: changed, Dropped: a.dropped})
	return a
}

// dropped reports a connection request that was dropped because too many wait (Crowded).
func (a *CMA) dropped(c *cm.Conn) {
	if a.Crowded != nil && !a.crowded {
		a.crowded = true
		a.Crowded(netip.AddrFrom16(c.Path.DGID).Unmap())
	}
}

func (a *CMA) now() ib.Time { return a.link.Now() }

// ReceiveMAD processes a MAD for queue pair 1.
func (a *CMA) ReceiveMAD(from, to ib.GID, mad []byte) {
	a.manager.Receive(a.now(), from, to, wire.MAD(mad))
}

// Ends reports whether a MAD ends a known connection.
func (a *CMA) Ends(from ib.GID, mad []byte) bool { return a.manager.Ends(from, wire.MAD(mad)) }

// Deadline returns when Expire has to be called; 0 is never.
func (a *CMA) Deadline() ib.Time { return a.manager.Deadline() }

// Expire handles due deadlines.
func (a *CMA) Expire() { a.manager.Expire(a.now()) }

// Connections returns the number of connections, including closed ones in TimeWait.
func (a *CMA) Connections() int { return a.manager.Len() }

// Send implements cm.Env.
func (a *CMA) Send(from, to ib.GID, mad wire.MAD) { a.link.SendMAD(from, to, mad) }

// gidIndex returns the index of an address in the GID table; -1 if it is not there.
func (a *CMA) gidIndex(gid ib.GID) int {
	for i := range a.nic.GIDs {
		if a.nic.GIDs[i].GID == gid {
			return a.nic.Face().Row(i)
		}
	}
	return -1
}

// A Client is a process, with a name space for its identifiers.
type Client struct {
	Pid     int
	UID     int // user of the process
	Program string
	// Established counts the stream connections so far.
	Established uint64

	// Faults are what fails of the process on purpose; nil: nothing.
	Faults *fault.Plan

	cma      *CMA
	requests *budget.Pace // nil: no limit
	ids      table[*ID]
	groups   table[*Group]
	channels table[*Channel]
}

// NewClient creates a client.
func (a *CMA) NewClient(pid int, program string) *Client {
	c := &Client{Pid: pid, Program: program, cma: a}
	a.clients[c] = struct{}{}
	return c
}

// Charges of a client's objects to its user's account, in bytes of the daemon's heap. An identifier is charged with its connection
// and one or two events. A channel also costs two descriptors: the daemon keeps both ends of its socket pair.
var (
	idBill      = budget.Bill{budget.State: 4 << 10}
	groupBill   = budget.Bill{budget.State: 1 << 10}
	channelBill = budget.Bill{budget.State: 2 << 10, budget.Files: 2}
	// A connection counts from its request or acceptance until the identifier is destroyed.
	connectionBill = budget.Bill{budget.Connections: 1}
)

// SetAccount sets the account to charge. It is called before the client has any objects; without it nothing is charged.
func (c *Client) SetAccount(a *budget.Account) {
	c.ids.account, c.ids.price = a, idBill
	c.groups.account, c.groups.price = a, groupBill
	c.channels.account, c.channels.price = a, channelBill
}

// SetPace limits the client's connection requests per second; several clients may share a pace. A request above the limit is refused at
// once (EAGAIN): programs have their own connection timeouts, and a delay here would look like a peer that does not answer.
func (c *Client) SetPace(p *budget.Pace) { c.requests = p }

// Close destroys all objects of the client.
func (c *Client) Close() {
	for _, ch := range c.channels.items {
		ch.Close()
	}
	delete(c.cma.clients, c)
	c.cma.leave(c)
}

// maxNames is the maximum number of identifiers of a kind, which is the size of librdmacm's index map.
const maxNames = 1 << 16

// A table numbers objects of one kind with small numbers, which are reused late.
type table[T any] struct {
	items   map[uint32]T
	next    uint32
	account *budget.Account
	price   budget.Bill // charge for one object
}

func (t *table[T]) add(v T) (uint32, error) {
	if t.items == nil {
		t.items = make(map[uint32]T)
	}
	if len(t.items) >= maxNames {
		return 0, syscall.ENOMEM
	}
	if err := t.account.Charge(t.price); err != nil {
		return 0, err
	}
	for {
		h := t.next
		t.next = (t.next + 1) % maxNames
		if _, taken := t.items[h]; !taken {
			t.items[h] = v
			return h, nil
		}
	}
}

func (t *table[T]) remove(name uint32) {
	if _, ok := t.items[name]; ok {
		delete(t.items, name)
		t.account.Refund(t.price)
	}
}
