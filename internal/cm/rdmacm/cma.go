package rdmacm

import (
	"syscall"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/cm"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/wire"
)

// Link carries management datagrams; the engine provides it.
type Link interface {
	// SendMAD sends mad from queue pair 1 at one of our addresses to queue pair 1 at
	// another. It keeps no reference to mad and delivers nothing before it returns.
	SendMAD(from, to ib.GID, mad []byte)
	// Due says that Deadline may be as soon as this.
	Due(at ib.Time)
	// Now is the loop's clock.
	Now() ib.Time
}

// CMA is the rdma_cm device of one NIC.
type CMA struct {
	nic     *nic.NIC
	link    Link
	manager *cm.Manager
	ports   map[portKey]*port
	clients map[*Client]struct{}
	vacant  map[portKey]vacancy // ports whose listener has just gone
	// nextPort is where the search for a free port begins.
	nextPort uint16
	// Notice hears of connections, on the loop; nil: nobody does. It is set before the device
	// is used.
	Notice func(Notice)

	// For the rules, see guard.go.
	talking map[ib.GID]map[*ID]struct{} // whose datagrams a peer has agreed to
	judged  uint32                      // nic.Generation when connections were judged last
	old     []*ID                       // that have to be judged again
}

// New makes the device.
func New(n *nic.NIC, l Link) *CMA {
	a := &CMA{nic: n, link: l, ports: make(map[portKey]*port), clients: make(map[*Client]struct{}), vacant: make(map[portKey]vacancy), talking: make(map[ib.GID]map[*ID]struct{}), judged: n.Generation()}
	n.SetConnections(a)
	a.nextPort = firstEphemeral + uint16(n.Random()%(lastEphemeral-firstEphemeral))
	a.manager = cm.New(cm.Config{GUID: n.NodeGUID, Random: n.Random, Env: a, Due: l.Due, Changed: changed})
	return a
}

func (a *CMA) now() ib.Time { return a.link.Now() }

// ReceiveMAD takes a MAD that came for queue pair 1.
func (a *CMA) ReceiveMAD(from, to ib.GID, mad []byte) {
	a.manager.Receive(a.now(), from, to, wire.MAD(mad))
}

// Ends reports whether a MAD ends a connection that is known here.
func (a *CMA) Ends(from ib.GID, mad []byte) bool { return a.manager.Ends(from, wire.MAD(mad)) }

// Deadline returns when Expire has to be called; 0 is never.
func (a *CMA) Deadline() ib.Time { return a.manager.Deadline() }

// Expire does what is due.
func (a *CMA) Expire() { a.manager.Expire(a.now()) }

// Connections returns how many connections are known, closed ones that linger included.
func (a *CMA) Connections() int { return a.manager.Len() }

// Send implements cm.Env.
func (a *CMA) Send(from, to ib.GID, mad wire.MAD) { a.link.SendMAD(from, to, mad) }

// gidIndex returns where in the GID table an address stands; -1: nowhere.
func (a *CMA) gidIndex(gid ib.GID) int {
	for i := range a.nic.GIDs {
		if a.nic.GIDs[i].GID == gid {
			return a.nic.Face().Row(i)
		}
	}
	return -1
}

// A Client is a process: the name space of its identifiers.
type Client struct {
	Pid     int
	UID     int // whose it is
	Program string
	// Established counts the stream connections that there have been.
	Established uint64

	cma      *CMA
	requests *budget.Pace // nil: no limit
	ids      table[*ID]
	groups   table[*Group]
	channels table[*Channel]
}

// NewClient makes a client.
func (a *CMA) NewClient(pid int, program string) *Client {
	c := &Client{Pid: pid, Program: program, cma: a}
	a.clients[c] = struct{}{}
	return c
}

// What a client's objects take of the daemon, for its user's account: bytes of its heap
// (an identifier with its connection and an event or two), and for a channel the socket
// pair of which the daemon keeps both ends.
var (
	idBill      = budget.Bill{budget.State: 4 << 10}
	groupBill   = budget.Bill{budget.State: 1 << 10}
	channelBill = budget.Bill{budget.State: 2 << 10, budget.Files: 2}
	// A connection counts from its request or acceptance to the end of the identifier.
	connectionBill = budget.Bill{budget.Connections: 1}
)

// SetAccount says who is charged for what the client has. It is called before the client
// has anything; without it nobody is.
func (c *Client) SetAccount(a *budget.Account) {
	c.ids.account, c.ids.price = a, idBill
	c.groups.account, c.groups.price = a, groupBill
	c.channels.account, c.channels.price = a, channelBill
}

// SetPace says how many connections the client may ask for a second, with others whose pace it
// is, too. Who asks for more is refused at once (EAGAIN): whoever waits for a connection has a
// time-out of its own, and one that was held up here would look like a peer that does not answer.
func (c *Client) SetPace(p *budget.Pace) { c.requests = p }

// Close ends everything that the client has.
func (c *Client) Close() {
	for _, ch := range c.channels.items {
		ch.Close()
	}
	delete(c.cma.clients, c)
	c.cma.leave(c)
}

// maxNames is how many identifiers of a kind there are: librdmacm's index map ends
// there.
const maxNames = 1 << 16

// A table names objects of one kind by small numbers, which are used again late.
type table[T any] struct {
	items   map[uint32]T
	next    uint32
	account *budget.Account
	price   budget.Bill // of one object
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
