package cm

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"testing"

	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/wire"
	"vrdma.dev/vrdma/internal/state"
	"vrdma.dev/vrdma/internal/state/statetest"
)

// freezing says which nodes of a world are frozen to bytes and thawed into a new Manager before a step; nil: none.
var freezing func(n *node, step int) bool

// TestMain runs all tests three times: as they are, with both sides frozen and thawed between any two steps, and with one side at every
// third step.
func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 && flag.Lookup("test.fuzz").Value.String() == "" && flag.Lookup("test.bench").Value.String() == "" {
		for name, who := range map[string]func(*node, int) bool{
			"both managers are frozen at every step":    func(*node, int) bool { return true },
			"one manager is frozen at every third step": func(n *node, step int) bool { return n.name == "a" && step%3 == 0 },
		} {
			freezing = who
			if code = m.Run(); code != 0 {
				fmt.Println("FAIL while", name)
				break
			}
		}
	}
	os.Exit(code)
}

// refreeze replaces the managers of nodes by restored ones.
func (w *world) refreeze() {
	if freezing == nil {
		return
	}
	w.steps++
	for _, n := range w.nodes {
		if freezing(n, w.steps) {
			n.refreeze()
		}
	}
}

// A savedNode is what a node's owner keeps of a manager: the connections with an owner are the owner's.
type savedNode struct {
	Manager ManagerState `cbor:"1,keyasint,omitempty"`
	Owned   []*ConnState `cbor:"2,keyasint,omitempty"`
}

func (n *node) freeze() *savedNode {
	st := &savedNode{Manager: n.m.Freeze(n.w.now, func(c *Conn) bool { return c.Owner == nil })}
	n.m.Each(func(c *Conn) {
		if c.Owner != nil {
			st.Owned = append(st.Owned, n.m.FreezeConn(n.w.now, c))
		}
	})
	return st
}

// thaw returns a manager with a state. Its clock has gone on by late.
func (n *node) thaw(st *savedNode, late ib.Time) (*Manager, error) {
	config := n.m.Config
	config.Random = func() uint32 { return 0 }
	m := New(config)
	m.Random = n.m.Random
	if err := m.Thaw(n.w.now+late, &st.Manager); err != nil {
		return nil, err
	}
	for _, c := range st.Owned {
		if _, err := m.ThawConn(n.w.now+late, c, n); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// refreeze replaces the manager by one that is restored from bytes. The test's pointers to connections stay valid: each old connection
// gets the contents of the new one.
func (n *node) refreeze() {
	n.w.t.Helper()
	b, err := state.Marshal(n.freeze())
	if err != nil {
		n.w.t.Fatal(err)
	}
	st := new(savedNode)
	if err := state.Unmarshal(b, st); err != nil {
		n.w.t.Fatal(err)
	}
	m, err := n.thaw(st, 0)
	if err != nil {
		n.w.t.Fatalf("%s cannot be restored: %v", n.name, err)
	}
	if m.Len() != n.m.Len() || m.Deadline() != n.m.Deadline() {
		n.w.t.Fatalf("%s has %d connections and deadline %d, want %d and %d", n.name, m.Len(), m.Deadline(), n.m.Len(), n.m.Deadline())
	}
	for id, c := range m.conns {
		old := n.m.conns[id]
		was := *old
		if was.slot = c.slot; !reflect.DeepEqual(was, *c) {
			n.w.t.Fatalf("%s restored\n%+v\nas\n%+v", n.name, was, *c)
		}
		*old = *c
		m.conns[id] = old
		if c.slot != 0 {
			m.timers[c.slot-1] = old
		}
	}
	restore(m, m.byRemote)
	restore(m, m.byQP)
	restore(m, m.questions)
	n.m = m
}

// restore replaces the connections in a map by those in m.conns.
func restore[K comparable](m *Manager, by map[K]*Conn) {
	for k, c := range by {
		by[k] = m.conns[c.LocalID]
	}
}

// snapshots plays every dialogue and returns a state of each kind that occurs: by State, with answered SIDR requests at the end.
func snapshots(t testing.TB) (list []*ConnState) {
	list = make([]*ConnState, len(stages)+1)
	old := freezing
	defer func() { freezing = old }()
	freezing = func(n *node, _ int) bool {
		n.m.Each(func(c *Conn) {
			st := n.m.FreezeConn(n.w.now, c)
			at := int(st.State)
			if st.State == TimeWait && st.SIDR {
				at = len(stages)
			}
			if list[at] == nil || st.Patient {
				list[at] = st
			}
		})
		return false
	}
	for _, c := range dialogues {
		w, a, b := newWorld(t)
		if c.setup != nil {
			c.setup(a, b)
		}
		c.talk(w, a, b)
		w.run(w.now + 2000*second)
	}
	return list
}

// sample is a state with a connection of every kind.
func sample(t testing.TB) *savedNode {
	st := &savedNode{Manager: ManagerState{Next: 0x7000}}
	for i, c := range snapshots(t) {
		if c == nil {
			if State(i) != Closed {
				t.Errorf("no dialogue has a connection in state %v", State(i))
			}
			continue
		}
		c.LocalID, c.RemoteID = uint32(i+1), uint32(i+101)
		if c.Linked {
			c.RemoteQPN = uint32(i + 201)
		}
		if c.State == DreqSent || c.State == TimeWait {
			st.Manager.Conns = append(st.Manager.Conns, *c)
		} else {
			st.Owned = append(st.Owned, c)
		}
	}
	return st
}

func TestStateTags(t *testing.T) { statetest.Tags(t, ManagerState{}, ConnState{}) }

func TestStateGolden(t *testing.T) {
	st := sample(t)
	c := st.Owned[0]
	c.Transport, c.Path.Rate, c.Path.TrafficClass, c.Path.HopLimit, c.Path.FlowLabel = 1, 16, 8, 64, 0x12345
	for _, st := range append(statetest.Golden(t, "manager", st), st) {
		statetest.Complete(t, st)
		w, a, _ := newWorld(t)
		w.now = second
		m, err := a.thaw(st, 0)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(st.Owned) + len(st.Manager.Conns); m.Len() != n || n != len(stages) {
			t.Errorf("%d of %d connections, want %d", m.Len(), n, len(stages))
		}
	}
}

// TestThawLate checks that deadlines continue where they were, and that those that have passed meanwhile are due at once.
func TestThawLate(t *testing.T) {
	for _, late := range []ib.Time{0, second, 3600 * second, -3600 * second} {
		w, a, b := newWorld(t)
		w.now = 7200 * second
		a.connect(b)
		left := a.m.Deadline() - w.now
		st := a.freeze()
		m, err := a.thaw(st, late) // with another clock
		if err != nil || m.Deadline() != w.now+late+left {
			t.Errorf("%d s later: deadline %d, %v, want %d", late/second, m.Deadline(), err, w.now+late+left)
		}
		st.Owned[0].Deadline = -1 << 62
		if m, err = a.thaw(st, late); err != nil || m.Deadline() > w.now+late || m.Deadline() <= 0 {
			t.Errorf("a deadline long ago: %d, %v", m.Deadline(), err)
		}
	}
}

// TestThawRefuses checks that a state that no manager can have gives an error.
func TestThawRefuses(t *testing.T) {
	owned := func(s State) func(st *savedNode) *ConnState {
		return func(st *savedNode) *ConnState {
			for _, c := range st.Owned {
				if c.State == s {
					return c
				}
			}
			return &st.Manager.Conns[0]
		}
	}
	for name, c := range map[string]struct {
		of     State
		change func(c *ConnState, st *savedNode)
	}{
		"unknown state":      {Established, func(c *ConnState, _ *savedNode) { c.State = State(len(stages)) }},
		"no number":          {Established, func(c *ConnState, _ *savedNode) { c.LocalID = 0 }},
		"a number twice":     {Established, func(c *ConnState, st *savedNode) { c.LocalID = st.Owned[0].LocalID }},
		"a queue pair twice": {Established, func(c *ConnState, st *savedNode) { st.Owned = append(st.Owned, again(c, 99, 99)) }},
		"a peer's number twice": {ReqRcvd, func(c *ConnState, st *savedNode) {
			c.Linked = false
			st.Owned = append(st.Owned, again(c, 99, c.RemoteID))
		}},
		"a question twice":            {SidrReqRcvd, func(c *ConnState, st *savedNode) { st.Owned = append(st.Owned, again(c, 99, c.RemoteID)) }},
		"large queue pair":            {Established, func(c *ConnState, _ *savedNode) { c.RemoteQPN = 1 << 24 }},
		"large PSN":                   {Established, func(c *ConnState, _ *savedNode) { c.SQPSN = 1 << 24 }},
		"transport service":           {Established, func(c *ConnState, _ *savedNode) { c.Transport = 4 }},
		"no interval":                 {ReqSent, func(c *ConnState, _ *savedNode) { c.Interval = 0 }},
		"long interval":               {ReqSent, func(c *ConnState, _ *savedNode) { c.Interval = 1 << 60 }},
		"no message":                  {RepSent, func(c *ConnState, _ *savedNode) { c.Message = nil }},
		"short message":               {RepSent, func(c *ConnState, _ *savedNode) { c.Message = c.Message[:100] }},
		"message of another class":    {RepSent, func(c *ConnState, _ *savedNode) { c.Message = make([]byte, wire.MADSize) }},
		"message in vain":             {Established, func(c *ConnState, _ *savedNode) { c.Message = make([]byte, wire.MADSize) }},
		"no deadline":                 {ReqSent, func(c *ConnState, _ *savedNode) { c.Timed = false }},
		"deadline in vain":            {Established, func(c *ConnState, _ *savedNode) { c.Timed = true }},
		"deadline far away":           {ReqSent, func(c *ConnState, _ *savedNode) { c.Deadline = 1 << 62 }},
		"active in a passive state":   {ReqRcvd, func(c *ConnState, _ *savedNode) { c.Active = true }},
		"passive in an active state":  {ReqSent, func(c *ConnState, _ *savedNode) { c.Active = false }},
		"SIDR in another state":       {Established, func(c *ConnState, _ *savedNode) { c.SIDR = true }},
		"repetitions":                 {ReqSent, func(c *ConnState, _ *savedNode) { c.Left = 101 }},
		"maximum repetitions":         {ReqSent, func(c *ConnState, _ *savedNode) { c.Retries = 16 }},
		"linked without a queue pair": {Established, func(c *ConnState, _ *savedNode) { c.RemoteQPN = 0 }},
		"no owner":                    {Established, func(c *ConnState, st *savedNode) { st.Manager.Conns = append(st.Manager.Conns, *c); st.Owned = nil }},
	} {
		st := sample(t)
		c.change(owned(c.of)(st), st)
		_, a, _ := newWorld(t)
		if _, err := a.thaw(st, 0); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	w, a, b := newWorld(t)
	a.connect(b)
	if err := a.m.Thaw(w.now, &ManagerState{}); err == nil {
		t.Error("a manager with connections was restored")
	}
}

func again(c *ConnState, local, remote uint32) *ConnState {
	two := *c
	two.LocalID, two.RemoteID = local, remote
	return &two
}

// TestDrop checks that Drop leaves nothing and sends nothing.
func TestDrop(t *testing.T) {
	w, a, _ := newWorld(t)
	m, err := a.thaw(sample(t), 0)
	if err != nil {
		t.Fatal(err)
	}
	a.m = m
	m.Each(m.Drop)
	m.Drop(&Conn{LocalID: 1, State: Closed})
	if w.sent != 0 || len(a.log) != 0 {
		t.Errorf("%d messages, events %q", w.sent, a.log)
	}
	w.empty()
}

// FuzzThaw checks that no state causes a panic, or a connection that stays without an owner.
func FuzzThaw(f *testing.F) {
	b, err := state.Marshal(sample(f))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	for _, c := range snapshots(f) {
		if c != nil {
			b, _ := state.Marshal(&savedNode{Owned: []*ConnState{c}})
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		st := new(savedNode)
		if state.Unmarshal(b, st) != nil {
			return
		}
		for _, c := range st.Owned {
			if c == nil {
				return
			}
		}
		w, a, peer := newWorld(t)
		w.now = second
		m, err := a.thaw(st, 0)
		if err != nil {
			return
		}
		a.m = m
		a.file(m.Deadline())
		for id := range m.conns {
			for kind := wire.CMREQ; kind <= wire.CMAPR; kind++ {
				mad := make(wire.MAD, wire.MADSize)
				mad.InitCM(kind, 1)
				wire.DREP(mad.Data()).SetRemoteCommID(id)
				m.Receive(w.now, m.conns[id].Path.DGID, peer.gid, mad)
				if m.conns[id] == nil {
					break
				}
			}
		}
		w.run(w.now + 10*second)
		a.m.Each(func(c *Conn) { a.m.Destroy(w.now, c) })
		w.empty()
	})
}
