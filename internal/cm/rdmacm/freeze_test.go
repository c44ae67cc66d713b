package rdmacm

import (
	goflag "flag"
	"fmt"
	"os"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/eventfile"
	"vrdma.dev/vrdma/internal/state"
)

// freezing is called between any two steps of a test; nil: nothing happens.
var freezing func(*fabric)

// TestMain runs all tests three times: as they are, with every device frozen to bytes and continued by a new one between any two steps,
// and with every device frozen, restored beside the old one and given up, so that the old one continues.
func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 && goflag.Lookup("test.fuzz").Value.String() == "" && goflag.Lookup("test.bench").Value.String() == "" {
		for name, how := range map[string]func(*fabric){"a new device continues": (*fabric).replace, "the old device continues": (*fabric).abandon} {
			freezing = how
			if code = m.Run(); code != 0 {
				fmt.Println("FAIL: frozen at every step,", name)
				break
			}
		}
	}
	os.Exit(code)
}

// refreeze is called between any two steps of a test. A long test is frozen now and then after its beginning.
func (f *fabric) refreeze() {
	const all, then = 200, 64
	if f.steps++; freezing != nil && (f.steps <= all || f.steps%then == 0) {
		f.t.Helper()
		freezing(f)
	}
}

// A savedHost is a device with its clients.
type savedHost struct {
	CMA     *CMAState      `cbor:"1,keyasint,omitempty"`
	Clients []*ClientState `cbor:"2,keyasint,omitempty"`
}

// An heir restores a client with the signals of an old one.
type heir struct {
	signals map[uint32]Signal
	account *budget.Account
}

func (h *heir) Account() *budget.Account { return h.account }

func (h *heir) Signal(channel uint32) (Signal, error) {
	if s := h.signals[channel]; s != nil {
		delete(h.signals, channel)
		return s, nil
	}
	return nil, fmt.Errorf("no signal")
}

// heirOf duplicates the descriptors of a client's signals, as sending them to another process does.
func heirOf(t testing.TB, c *Client, account *budget.Account) *heir {
	h := &heir{signals: map[uint32]Signal{}, account: account}
	for name, ch := range c.channels.items {
		socket, ok := ch.Signal().(*eventfile.Socket)
		if !ok {
			h.signals[name] = ch.Signal()
			continue
		}
		fds := socket.Fds()
		for i := range fds {
			var err error
			if fds[i], err = unix.FcntlInt(uintptr(fds[i]), unix.F_DUPFD_CLOEXEC, 0); err != nil {
				t.Fatal(err)
			}
		}
		var err error
		if h.signals[name], err = eventfile.Of(fds); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// save freezes the device to bytes and reads them.
func (f *fabric) save(clients []*Client) *savedHost {
	f.t.Helper()
	st := &savedHost{CMA: f.cma.Freeze()}
	for _, c := range clients {
		st.Clients = append(st.Clients, c.Freeze())
	}
	b, err := state.Marshal(st)
	if err != nil {
		f.t.Fatal(err)
	}
	read := new(savedHost)
	if err := state.Unmarshal(b, read); err != nil {
		f.t.Fatal(err)
	}
	return read
}

// abandon restores the device from bytes beside the old one, and gives the new one up.
func (f *fabric) abandon() {
	f.t.Helper()
	old := f.cma
	var clients []*Client
	for c := range old.clients {
		clients = append(clients, c)
	}
	st := f.save(clients)
	sent := len(f.q)
	a := New(old.nic, f)
	defer old.nic.SetConnections(old)
	if err := a.Thaw(st.CMA); err != nil {
		f.t.Fatal(err)
	}
	for i, c := range clients {
		if _, err := a.ThawClient(st.Clients[i], heirOf(f.t, c, nil)); err != nil {
			f.t.Fatalf("client %d cannot be restored: %v", i, err)
		}
	}
	if a.Connections() != old.Connections() || a.Deadline() != old.Deadline() || len(a.ports) != len(old.ports) || len(f.q) != sent {
		f.t.Fatalf("restored: %d connections, deadline %d, %d ports, %d messages; want %d, %d, %d, %d", a.Connections(), a.Deadline(), len(a.ports),
			len(f.q), old.Connections(), old.Deadline(), len(old.ports), sent)
	}
	for c := range a.clients {
		c.discard()
	}
	if len(a.ports)+len(a.talking)+len(a.vacant)+len(a.clients) != 0 || a.Connections() != len(st.CMA.Manager.Conns) || len(f.q) != sent {
		f.t.Fatalf("given up: %d ports, %d peers, %d vacancies, %d connections, %d messages", len(a.ports), len(a.talking), len(a.vacant), a.Connections(), len(f.q)-sent)
	}
}

// replace replaces the device by one that is restored from bytes. The test's pointers stay valid: see adopt.
func (f *fabric) replace() {
	f.t.Helper()
	old := f.cma
	var clients []*Client
	for c := range old.clients {
		clients = append(clients, c)
	}
	st := f.save(clients)
	heirs := make([]*heir, len(clients))
	shelves := map[*Channel]shelf{}
	for i, c := range clients {
		heirs[i] = heirOf(f.t, c, c.ids.account)
		for _, ch := range c.channels.items {
			shelves[ch] = ch.shelf
		}
	}
	// The old objects are gone before the new ones exist, because both are charged to the same accounts here.
	images := make([]image, len(clients))
	for i, c := range clients {
		images[i] = imageOf(c)
		c.discard()
	}
	a := New(old.nic, f)
	a.Notice = old.Notice
	if err := a.Thaw(st.CMA); err != nil {
		f.t.Fatal(err)
	}
	for i, c := range clients {
		restored, err := a.ThawClient(st.Clients[i], heirs[i])
		if err != nil {
			f.t.Fatalf("client %d cannot be restored: %v", i, err)
		}
		restored.SetPace(c.requests)
		images[i].adopt(f.t, restored)
	}
	f.cma = a
	for ch, s := range shelves {
		if s.Shelf != nil {
			ch.Stock(s.Shelf, int(s.slots), s.encode)
		}
	}
}

// An image has the objects of a client by number.
type image struct {
	client   *Client
	ids      map[uint32]*ID
	values   map[uint32]ID // without pointers
	channels map[uint32]*Channel
	groups   map[uint32]*Group
	ahead    map[uint32]Ahead
}

func imageOf(c *Client) image {
	m := image{c, map[uint32]*ID{}, map[uint32]ID{}, map[uint32]*Channel{}, map[uint32]*Group{}, map[uint32]Ahead{}}
	for name, id := range c.ids.items {
		m.ids[name], m.values[name] = id, id.value()
	}
	for name, ch := range c.channels.items {
		m.channels[name], m.ahead[name] = ch, ch.ahead
	}
	for name, g := range c.groups.items {
		m.groups[name] = g
	}
	return m
}

// value returns the fields of an ID that are no pointers.
func (id *ID) value() ID {
	v := *id
	if v.until = max(v.until, v.cma.now()); v.state != Resolving {
		v.until = 0
	}
	v.cma, v.client, v.ch, v.port, v.conn, v.groups = nil, nil, nil, nil, nil, nil
	return v
}

// adopt moves a restored client into the old objects, so that a test's pointers to them stay valid. It changes addresses only: every
// field has the restored value.
func (m image) adopt(t testing.TB, c *Client) {
	t.Helper()
	a, was := c.cma, m.client
	if c.Pid != was.Pid || c.UID != was.UID || c.Program != was.Program || c.Established != was.Established ||
		c.ids.next != was.ids.next || c.groups.next != was.groups.next || c.channels.next != was.channels.next {
		t.Fatalf("restored\n%+v\nas\n%+v", was, c)
	}
	oldID := func(id *ID) *ID {
		if id == nil {
			return nil
		}
		return m.ids[id.Name]
	}
	for name, ch := range c.channels.items {
		for _, e := range ch.events {
			e.id, e.child = oldID(e.id), oldID(e.child)
			if e.group != nil {
				e.group = m.groups[e.group.Name]
			}
		}
		ids := map[*ID]struct{}{}
		for id := range ch.ids {
			ids[oldID(id)] = struct{}{}
		}
		*m.channels[name] = *ch
		old := m.channels[name]
		old.client, old.ids = m.client, ids
		c.channels.items[name] = old
		old.Foresee(m.ahead[name])
	}
	for name, id := range c.ids.items {
		old := m.ids[name]
		if was := m.values[name]; !reflect.DeepEqual(was, id.value()) {
			t.Fatalf("restored\n%+v\nas\n%+v", was, id.value())
		}
		if p := id.port; p != nil {
			for i, o := range p.owners {
				if o == id {
					p.owners[i] = old
				}
			}
		}
		for i, g := range id.groups {
			id.groups[i] = m.groups[g.Name]
		}
		if set := a.talking[id.dgid]; set != nil {
			if _, talks := set[id]; talks {
				delete(set, id)
				set[old] = struct{}{}
			}
		}
		if id.conn != nil && id.conn.Owner == id {
			id.conn.Owner = old
		}
		*old = *id
		old.client, old.ch = m.client, m.channels[id.ch.Name]
		c.ids.items[name] = old
	}
	for name, g := range c.groups.items {
		*m.groups[name] = *g
		m.groups[name].id = oldID(g.id)
		c.groups.items[name] = m.groups[name]
	}
	for k, v := range a.vacant {
		if v.of == c {
			a.vacant[k] = vacancy{m.client, v.at}
		}
	}
	delete(a.clients, c)
	a.clients[m.client] = struct{}{}
	*m.client = *c
}
