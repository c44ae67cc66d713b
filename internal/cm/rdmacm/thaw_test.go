package rdmacm

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/state"
	"vrdma.dev/vrdma/internal/state/statetest"
)

func TestStateTags(t *testing.T) { statetest.Tags(t, CMAState{}, ClientState{}) }

// sample is a host with objects of every kind.
func sample(t testing.TB) *savedHost {
	t.Helper()
	f := newFabric(t)
	server, client, _, from := connected(f)
	// A connection that its program has closed, and one that waits for its program.
	gone := client.id(201, abi.PSTCP)
	client.route(gone, "10.0.0.1:7000")
	client.must(gone.Connect(param(0x12, "second"), ECE{}))
	second, err := server.ch.ID(server.next(abi.CMEventConnectRequest).ID)
	server.must(err)
	server.must(second.Accept(102, param(0x23, ""), ECE{}))
	client.next(abi.CMEventConnectResponse)
	client.must(gone.Accept(0, &abi.CMConnParam{}, ECE{}))
	server.next(abi.CMEventEstablished)
	gone.Destroy()
	f.settle()
	// A request that nobody has read, datagrams, a group, events of the program.
	waits := client.id(202, abi.PSTCP)
	client.must(waits.SetOption(abi.CMOptionIDTOS, []byte{8}))
	client.must(waits.SetOption(abi.CMOptionIDAckTimeout, []byte{20}))
	client.route(waits, "10.0.0.1:7000")
	p := param(0x13, "third")
	p.SRQ = 1
	client.must(waits.Connect(p, ECE{Vendor: 1, Modifier: 2}))
	f.settle()
	server.listener(103, abi.PSUDP, "0.0.0.0:7000", 3)
	asks := client.id(203, abi.PSUDP)
	client.route(asks, "10.0.0.1:7000")
	client.must(asks.Connect(param(0x14, ""), ECE{}))
	f.settle()
	for _, e := range server.ch.events {
		if e.resp.Event == abi.CMEventConnectRequest && e.child.ud() {
			q := param(0x24, "reply")
			q.QKey = 0x55
			server.must(e.child.Accept(104, q, ECE{}))
		}
	}
	f.settle()
	member := client.id(204, abi.PSUDP)
	client.must(member.SetOption(abi.CMOptionIDReuseAddr, []byte{1, 0, 0, 0}))
	client.must(member.SetOption(abi.CMOptionIDAFOnly, []byte{1, 0, 0, 0}))
	client.must(member.Bind(addr("10.0.0.1:0")))
	first, err := member.Join(5, netip.MustParseAddr("224.1.2.3"))
	client.must(err)
	first.reported = 1
	_, err = member.Join(6, netip.MustParseAddr("224.1.2.4"))
	client.must(err)
	more, _ := client.channel()
	client.must(func() error { _, err := more.Migrate(client.ch.Name, member.Name); return err }())
	client.must(from.Write(abi.CMEventUser, 7, [8]byte{1}))
	// An address that is being resolved, and a listener that was just closed.
	seeks := client.id(205, abi.PSTCP)
	_, _, err = seeks.BeginResolve(netip.AddrPort{}, addr("10.0.0.9:7000"))
	client.must(err)
	seeks.Patient(2 * time.Second)
	server.listener(105, abi.PSTCP, "0.0.0.0:7001", 0).Destroy()
	f.now += 1000

	server.c.UID, client.c.UID = 1000, 1001
	st := f.save([]*Client{server.c, client.c})
	st.Clients[0].Channels[0].Shelf = &ShelfState{Next: 3, Laid: 4}
	c := st.Clients[0].find(Connecting).Conn
	c.Tries, c.Patient, c.Transport, c.Path.FlowLabel = 1, true, 1, 0x12345
	return st
}

// restore returns a new host with a state. Its channels have new signals.
func (st *savedHost) restore(t testing.TB, account *budget.Account) (*fabric, []*Client, error) {
	f := newFabric(t)
	f.now = 1e9
	if st.CMA == nil {
		return f, nil, errors.New("no device")
	}
	if err := f.cma.Thaw(st.CMA); err != nil {
		f.cma = New(f.cma.nic, f)
		return f, nil, err
	}
	var clients []*Client
	for _, s := range st.Clients {
		if s == nil {
			return f, nil, errors.New("no client")
		}
		c, err := f.cma.ThawClient(s, &fresh{account: account})
		if err != nil {
			return f, clients, err
		}
		clients = append(clients, c)
	}
	return f, clients, nil
}

// fresh restores clients with signals that do nothing.
type fresh struct {
	account *budget.Account
	open    int
	broken  bool
}

type silent struct{ of *fresh }

func (r *fresh) Account() *budget.Account { return r.account }

func (r *fresh) Signal(uint32) (Signal, error) {
	if r.broken {
		return nil, syscall.EMFILE
	}
	r.open++
	return silent{r}, nil
}

func (silent) Raise() bool { return true }
func (silent) Lower()      {}
func (s silent) Close()    { s.of.open-- }

func TestStateGolden(t *testing.T) {
	for _, st := range append(statetest.Golden(t, "host", sample(t)), sample(t)) {
		statetest.Complete(t, st)
		f, clients, err := st.restore(t, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(clients) != 2 || f.cma.Connections() == 0 || len(f.q) != 0 {
			t.Errorf("%d clients, %d connections, %d messages", len(clients), f.cma.Connections(), len(f.q))
		}
		again := &savedHost{CMA: f.cma.Freeze()}
		for _, c := range clients {
			again.Clients = append(again.Clients, c.Freeze())
		}
		if got, want := statetest.Text(again), statetest.Text(st); got != want {
			t.Errorf("frozen again:\n%s\nwant\n%s", got, want)
		}
	}
}

// TestThawRefuses checks that every number that does not fit gives an error, after which nothing is left of the client.
func TestThawRefuses(t *testing.T) {
	for name, change := range map[string]func(st *savedHost, c *ClientState){
		"next port":                func(st *savedHost, _ *ClientState) { st.CMA.NextPort = 80 },
		"connection of nobody":     func(st *savedHost, _ *ClientState) { st.CMA.Manager.Conns[0].Interval = 0 },
		"next number":              func(_ *savedHost, c *ClientState) { c.NextID = maxNames },
		"large ID":                 func(_ *savedHost, c *ClientState) { c.IDs[0].Name = maxNames },
		"ID twice":                 func(_ *savedHost, c *ClientState) { c.IDs[1].Name = c.IDs[0].Name },
		"ID without a channel":     func(_ *savedHost, c *ClientState) { c.IDs[0].Channel = 7 },
		"unknown state":            func(_ *savedHost, c *ClientState) { c.IDs[0].State = Destroyed },
		"unknown port space":       func(_ *savedHost, c *ClientState) { c.IDs[0].Space = 1 },
		"listener without a port":  func(_ *savedHost, c *ClientState) { c.find(Listening).Bound = false },
		"idle with a port":         func(_ *savedHost, c *ClientState) { c.find(Listening).State = Idle },
		"resolving without a port": func(st *savedHost, _ *ClientState) { st.Clients[1].find(Resolving).Bound = false },
		"bound to nothing":         func(_ *savedHost, c *ClientState) { c.find(Listening).Src = nil },
		"bad address":              func(_ *savedHost, c *ClientState) { c.IDs[0].Src = []byte{1, 2, 3} },
		"bad GID":                  func(_ *savedHost, c *ClientState) { c.IDs[0].SGID = []byte{1, 2, 3} },
		"listener with a connection": func(_ *savedHost, c *ClientState) {
			c.find(Listening).Conn = c.find(Connecting).Conn
		},
		"bad connection":    func(_ *savedHost, c *ClientState) { c.find(Connecting).Conn.LocalID = 0 },
		"backlog":           func(_ *savedHost, c *ClientState) { c.find(Listening).Backlog = maxBacklog + 1 },
		"PSN":               func(_ *savedHost, c *ClientState) { c.IDs[0].PSN = 1 << 24 },
		"lifetime":          func(_ *savedHost, c *ClientState) { c.IDs[0].Life = 255 },
		"resolution":        func(_ *savedHost, c *ClientState) { c.IDs[0].Patience = -1 },
		"channel twice":     func(_ *savedHost, c *ClientState) { c.Channels = append(c.Channels, c.Channels[0]) },
		"large channel":     func(_ *savedHost, c *ClientState) { c.Channels[0].Name = maxNames },
		"shelf":             func(_ *savedHost, c *ClientState) { c.Channels[0].Shelf.Laid += 100 },
		"shelf backwards":   func(_ *savedHost, c *ClientState) { c.Channels[0].Shelf.Next += 100 },
		"event of nobody":   func(_ *savedHost, c *ClientState) { c.Channels[0].Events[0].Of = 77 },
		"request of nobody": func(_ *savedHost, c *ClientState) { c.event(abi.CMEventConnectRequest).ID = 77 },
		"request of itself": func(_ *savedHost, c *ClientState) { e := c.event(abi.CMEventConnectRequest); e.ID = e.Of },
		"long event":        func(_ *savedHost, c *ClientState) { c.Channels[0].Events[0].Param = make([]byte, 305) },
		"vacancy":           func(_ *savedHost, c *ClientState) { c.Vacant[0].Age = -1 },
		"group of nobody":   func(st *savedHost, _ *ClientState) { st.Clients[1].Groups[0].ID = 77 },
		"event of no group": func(st *savedHost, _ *ClientState) { st.Clients[1].event(abi.CMEventMulticastJoin).ID = 77 },
		"group twice":       func(st *savedHost, _ *ClientState) { g := &st.Clients[1].Groups; *g = append(*g, (*g)[0]) },
		"connection of another": func(st *savedHost, _ *ClientState) {
			st.Clients[1].find(Connecting).Conn.LocalID = st.Clients[0].find(Connecting).Conn.LocalID
		},
	} {
		st := sample(t)
		change(st, st.Clients[0])
		f, clients, err := st.restore(t, nil)
		if err == nil {
			t.Errorf("%s: no error", name)
		}
		for _, c := range clients {
			c.discard()
		}
		a := f.cma
		if n := len(a.ports) + len(a.clients) + len(a.vacant) + len(a.talking); n != 0 || len(f.q) != 0 {
			t.Errorf("%s: %d objects and %d messages are left", name, n, len(f.q))
		}
	}
}

func (st *ClientState) find(s State) *IDState {
	return &st.IDs[slices.IndexFunc(st.IDs, func(id IDState) bool { return id.State == s })]
}

func (st *ClientState) event(kind uint32) *EventState {
	var list []EventState
	for _, ch := range st.Channels {
		if list = ch.Events; slices.ContainsFunc(list, func(e EventState) bool { return e.Event == kind }) {
			break
		}
	}
	return &list[slices.IndexFunc(list, func(e EventState) bool { return e.Event == kind })]
}

// TestThawCharges checks that a restored client is charged like the old one, that a client that does not fit is refused, and that a
// failed restoration charges nothing.
func TestThawCharges(t *testing.T) {
	limit := budget.Bill{}
	for k := range limit {
		limit[k] = 1 << 40
	}
	ledger := budget.New(budget.Limits{All: limit, Others: limit, User: limit})
	who := ledger.User(1000)
	f := newFabric(t)
	p := &prog{f: f, c: f.cma.NewClient(1, "test")}
	p.c.SetAccount(who)
	p.ch, p.fd = p.channel()
	id := p.id(1, abi.PSUDP)
	p.must(id.Bind(addr("10.0.0.1:0")))
	_, err := id.Join(5, netip.MustParseAddr("224.1.2.3"))
	p.must(err)
	id = p.id(2, abi.PSTCP)
	p.must(id.Bind(addr("10.0.0.1:0")))
	p.must(id.count())
	want, st := who.Used(), p.c.Freeze()

	heir := budget.New(budget.Limits{All: limit, Others: limit, User: limit}).User(1000)
	r := &fresh{account: heir}
	c, err := newFabric(t).cma.ThawClient(st, r)
	if err != nil {
		t.Fatal(err)
	}
	if heir.Used() != want || r.open != 1 {
		t.Errorf("the new one is charged %v, want %v; %d signals", heir.Used(), want, r.open)
	}
	c.Close()
	if heir.Used() != (budget.Bill{}) || r.open != 0 {
		t.Errorf("closed, it is charged %v and has %d signals", heir.Used(), r.open)
	}
	small := limit
	small[budget.State] = want[budget.State] - 1
	poor := budget.New(budget.Limits{All: limit, Others: limit, User: small}).User(1000)
	r = &fresh{account: poor}
	if _, err := newFabric(t).cma.ThawClient(st, r); !errors.Is(err, syscall.ENOMEM) || poor.Used() != (budget.Bill{}) || r.open != 0 {
		t.Errorf("without enough: %v, want ENOMEM; charged %v, %d signals", err, poor.Used(), r.open)
	}
	if _, err := newFabric(t).cma.ThawClient(st, &fresh{broken: true}); !errors.Is(err, syscall.EMFILE) {
		t.Errorf("without a signal: %v", err)
	}
}

// TestThawShelf checks that events on the shelf reach the client once, in order, whether it takes them before the snapshot, between the
// snapshot and the restoration, or afterwards.
func TestThawShelf(t *testing.T) {
	const events = 12
	for before := range 4 {
		for between := range 4 {
			t.Run(fmt.Sprint(before, " ", between), func(t *testing.T) {
				page, file, err := protocol.NewMail(true)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { // after the fabric, which writes there until its end
					page.Close()
					file.Close()
				})
				f := newFabric(t)
				p := f.program()
				encode := func(e *abi.CMEventResp) []byte { return []byte{byte(e.Status)} }
				p.ch.Foresee(page)
				p.ch.Stock(page, protocol.ShelfSlots, encode)
				id := p.id(1, abi.PSTCP)
				for i := range events {
					p.must(id.Write(abi.CMEventUser, uint32(i), [8]byte{}))
				}
				var got []byte
				pick := func(most int) {
					var b [protocol.ShelfStride]byte
					for range most {
						n, ok := page.Pick(b[:])
						if !ok {
							return
						}
						got = append(got, b[:n]...)
					}
				}
				pick(before)
				st := f.save([]*Client{p.c})
				pick(between)
				heir := heirOf(t, p.c, nil)
				p.c.discard()
				f.cma = New(f.cma.nic, f)
				p.must(f.cma.Thaw(st.CMA))
				c, err := f.cma.ThawClient(st.Clients[0], heir)
				p.must(err)
				p.c, p.ch = c, c.Channel(p.ch.Name)
				p.ch.Foresee(page)
				p.ch.Stock(page, protocol.ShelfSlots, encode)
				id, err = p.ch.ID(id.Name)
				p.must(err)
				if n := len(p.ch.events); n != events-before-between || page.Events() == 0 || int(id.reported) != before+between {
					t.Errorf("%d events wait, the mailbox says %d, %d were reported", n, page.Events(), id.reported)
				}
				for len(got) < events {
					pick(2)
					if e, err := p.ch.GetEvent(); err == nil {
						got = append(got, byte(e.Status))
					}
				}
				p.none()
				for i, n := range got {
					if int(n) != i {
						t.Fatalf("the client got %v", got)
					}
				}
			})
		}
	}
}

// TestThawResolving checks that a restored client knows the resolutions that nobody works on.
func TestThawResolving(t *testing.T) {
	f := newFabric(t)
	p := f.program()
	id := p.id(1, abi.PSTCP)
	_, _, err := id.BeginResolve(addr("10.0.0.1:0"), addr("10.0.0.9:7000"))
	p.must(err)
	id.Patient(3 * time.Second)
	f.now += 1e9
	st := p.c.Freeze()
	other := newFabric(t)
	other.now = 500e9
	c, err := other.cma.ThawClient(st, &fresh{})
	p.must(err)
	list := c.Resolving()
	want := Resolution{c.ids.items[id.Name], c.Channel(p.ch.Name), addr("10.0.0.1:0").Addr(), addr("10.0.0.9:0").Addr(), 2 * time.Second}
	if len(list) != 1 || list[0] != want {
		t.Fatalf("resolutions %+v, want %+v", list, want)
	}
	list[0].ID.EndResolve(addr("10.0.0.1:0").Addr(), 0)
	if e, err := c.Channel(p.ch.Name).GetEvent(); err != nil || e.Event != abi.CMEventAddrResolved || len(c.Resolving()) != 0 {
		t.Errorf("then %+v, %v", e, err)
	}
}

// TestThawJudged checks that connections of a restored client are checked against the rules of the new device.
func TestThawJudged(t *testing.T) {
	f := newFabric(t)
	server, _, at, _ := connected(f)
	other := newFabric(t)
	other.judge(nothing)
	c, err := other.cma.ThawClient(server.c.Freeze(), &fresh{})
	server.must(err)
	for other.cma.nic.Rejudge(1) {
	}
	if id := c.ids.items[at.Name]; id.state != Disconnected || other.refused(nic.Revoked) != 1 {
		t.Errorf("state %s, %d revoked", idStates[id.state], other.refused(nic.Revoked))
	}
}

// TestThawSharedPort checks that several owners of a port keep their order, which decides who gets a request.
func TestThawSharedPort(t *testing.T) {
	f := newFabric(t)
	var clients []*Client
	var owners []string
	for i := range 6 {
		p := f.program()
		id := p.id(uint64(i+1), abi.PSTCP)
		p.must(id.SetOption(abi.CMOptionIDReuseAddr, []byte{1, 0, 0, 0}))
		p.must(id.Bind(addr("0.0.0.0:7000")))
		clients = append([]*Client{p.c}, clients...)
	}
	names := func(a *CMA) (list []string) {
		for _, o := range a.ports[portKey{abi.PSTCP, 7000}].owners {
			list = append(list, fmt.Sprint(o.uid))
		}
		return list
	}
	owners = names(f.cma)
	st := f.save(clients)
	slices.Reverse(st.Clients[:3])
	other, _, err := st.restore(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := names(other.cma); !reflect.DeepEqual(got, owners) || other.cma.turns != f.cma.turns {
		t.Errorf("owners %s, want %s", strings.Join(got, " "), strings.Join(owners, " "))
	}
}

// TestForgottenRequest checks that a request that was revoked before its listener read it does not count against the backlog.
func TestForgottenRequest(t *testing.T) {
	f := newFabric(t)
	server, client := f.program(), f.program()
	l := server.listener(100, abi.PSTCP, "0.0.0.0:7000", 1)
	for i := range uint64(3) {
		f.judge(everything)
		id := client.id(200+i, abi.PSTCP)
		client.route(id, "10.0.0.1:7000")
		client.must(id.Connect(param(uint32(i+1), ""), ECE{}))
		f.settle()
		if l.waiting != 1 {
			t.Errorf("request %d: %d wait", i, l.waiting)
		}
		f.judge(nothing)
		if l.waiting != 0 {
			t.Errorf("revoked request %d: %d wait", i, l.waiting)
		}
		client.next(abi.CMEventRejected)
	}
}

// A board is a Shelf whose client takes nothing.
type board struct{ taken uint64 }

func (b *board) Taken() uint64           { return b.taken }
func (b *board) Lay(uint64, []byte) bool { return true }
func (b *board) SetReady(uint64)         {}
func (b *board) Claim(n uint64) bool     { b.taken = n + 1; return true }
func (b *board) Freeze() uint64          { return b.taken }
func (b *board) Thaw(n uint64)           { b.taken = n }

// FuzzThaw checks that no state of a host causes a panic, neither when it is restored nor when its objects are used, and that nothing is
// left of it.
func FuzzThaw(f *testing.F) {
	st := sample(f)
	b, err := state.Marshal(st)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	for _, c := range st.Clients {
		b, _ := state.Marshal(&savedHost{CMA: &CMAState{NextPort: firstEphemeral}, Clients: []*ClientState{c}})
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		st := new(savedHost)
		if state.Unmarshal(b, st) != nil {
			return
		}
		host, clients, _ := st.restore(t, nil)
		host.judge(everything)
		for _, c := range clients {
			c.Status()
			c.Resolving()
			for _, ch := range c.channels.items {
				if ch.shelf.thawed {
					ch.Stock(&board{taken: 4}, 8, func(*abi.CMEventResp) []byte { return nil })
				}
				for _, id := range ch.client.ids.items {
					id.Listen(0)
					id.Accept(1, param(1, ""), ECE{})
					id.Disconnect()
					id.Query()
					id.QPAttr(abi.QPStateRTR)
				}
				for range 3 {
					ch.GetEvent()
				}
			}
		}
		host.off = true
		host.wait(1e9)
		host.judge(nothing)
		for _, c := range clients {
			if b, err := state.Marshal(c.Freeze()); err != nil || state.Unmarshal(b, new(ClientState)) != nil {
				t.Error("cannot be frozen again")
			}
			for _, id := range c.ids.items {
				id.Destroy()
			}
		}
	})
}
