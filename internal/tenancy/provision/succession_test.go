package provision

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/client/server"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/netns"
	"vrdma.dev/vrdma/internal/net/vhostuser"
	"vrdma.dev/vrdma/internal/net/vswitch"
	"vrdma.dev/vrdma/internal/state"
	"vrdma.dev/vrdma/internal/state/statetest"
)

// handOver reads the state of a frozen Provisioner, and returns it as another process gets it.
func handOver(t *testing.T, r *Provisioner, f *Frozen) (*State, []*os.File) {
	t.Helper()
	var files []*os.File
	var st State
	if err := r.onLoop(func() {
		made, err := f.Snapshot(func(fd int) server.FD {
			n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				t.Errorf("descriptor %d: %v", fd, err)
			}
			files = append(files, os.NewFile(uintptr(n), "inherited"))
			return server.FD(len(files))
		})
		if err != nil {
			t.Fatal(err)
		}
		b, err := state.Marshal(made)
		if err == nil {
			err = state.Unmarshal(b, &st)
		}
		if err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	return &st, files
}

func freeze(t *testing.T, r *Provisioner) *Frozen {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	f, err := r.Freeze(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// The next Provisioner has the addresses and the sockets of the container and follows its changes, those during the
// handover, too. When the handover fails, the old one goes on.
func TestSuccession(t *testing.T) {
	old, s := namespaceNIC(t)
	b := newContainer(t)
	c, end := b.conn()
	defer end()
	if err := s.namespace.attach(c); err != nil {
		t.Fatal(err)
	}
	b.ip("address add 10.9.0.2/24 dev e0")
	until(t, "the second address", func() bool { return s.has("10.9.0.2") })

	f := freeze(t, old)
	b.ip("address add 10.9.0.3/24 dev e0")
	_, files := handOver(t, old, f)
	closeFiles(files) // the next daemon fails
	f.Resume()
	until(t, "the old daemon follows", func() bool { return s.has("10.9.0.3") })

	f = freeze(t, old)
	st, files := handOver(t, old, f)
	defer f.Resume()
	next, n := namespaceNIC(t)
	before := *s.nic.Device.Face()
	var commit func()
	var number func(ib.NetworkID) ib.NetworkID
	if err := next.onLoop(func() {
		var err error
		if commit, number, err = next.Thaw(st, files); err != nil {
			t.Error(err)
		}
	}); err != nil || commit == nil {
		t.FailNow()
	}
	if now := *n.nic.Device.Face(); !reflect.DeepEqual(now, before) {
		t.Errorf("the NIC has %+v, and had %+v", now, before)
	}
	if got := number(s.namespace.number); got != n.namespace.number || number(ib.HostNetwork) != ib.HostNetwork {
		t.Errorf("the network has the number %v, want %v", got, n.namespace.number)
	}
	if i := slices.IndexFunc(files, func(f *os.File) bool { return f != nil }); i >= 0 {
		t.Errorf("descriptor %d is not used", i)
	}
	if a, err := n.namespace.routes.From(netip.IPv4Unspecified(), netip.MustParseAddr("10.9.0.77")); err != nil || a != netip.MustParseAddr("10.9.0.1") {
		t.Errorf("the route to a neighbour is from %v, %v", a, err)
	}
	b.ip("address del 10.9.0.3/24 dev e0")
	commit()
	until(t, "the next daemon follows", func() bool { return !n.has("10.9.0.3") && n.has("10.9.0.2") })
	b.ip("address add 10.9.0.4/24 dev e0")
	until(t, "another address", func() bool { return n.has("10.9.0.4") })
	last := n.namespace.last
	n.namespace.detach()
	until(t, "the end", func() bool { return last.over(0) })
	if len(n.nic.Device.Face().GIDs) != 0 {
		t.Errorf("detached, it has %v", n.nic.Device.Face().GIDs)
	}
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// A daemon that cannot stand still says which NIC is to blame, and continues.
func TestFreezeWaits(t *testing.T) {
	r, s := namespaceNIC(t)
	s.namespace.mu.Lock()
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if _, err := r.Freeze(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a NIC that is moving: %v", err)
	}
	s.namespace.mu.Unlock()
	freeze(t, r).Resume()
	freeze(t, r).Resume()
}

// everything has a value in each field of a State.
func everything() *State {
	four, lo := netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("127.0.0.1")
	a, _ := four.MarshalBinary()
	b, _ := lo.MarshalBinary()
	return &State{
		Namespaces: []NamespaceState{{
			NIC: "red/web", Number: ib.NamespaceNetwork(3), Space: netns.SpaceState{Cookie: 77, Helped: true}, File: 1, Netlink: 2, UDP4: 3, UDP6: 4, Watch: 5,
			Rows: []RowState{{Addr: a, Name: "eth0", Index: 2, MTU: 1500, Sockets: []server.FD{6, 7}}, {Number: 1, Addr: b, Name: "lo", Index: 1, MTU: 65536}}, Owed: true,
		}},
		Interfaces: []InterfaceState{{NIC: "red/db", Namespace: "/proc/7/ns/net", Cookie: 78, Interface: "net1", Who: "container db", Inode: "4:99", Name: "net1", File: 8}},
		Switch: &vswitch.State{
			Ports:    []vswitch.PortState{{NIC: "red/db", Counters: []uint64{1, 2, 3}}},
			Networks: []vswitch.NetworkState{{Name: "red/net", Flows: make([]byte, 37)}},
		},
		Cards: []CardState{{NIC: "red/db", Listener: 9}},
		Machines: []GuestState{{NIC: "red/vm", Who: "virtual machine one", Name: "one", Socket: 10, Conn: &vhostuser.ConnState{
			Features: 1, Protocol: 2, Regions: []vhostuser.RegionState{{Guest: 1, Size: 4096, User: 2, Offset: 3, Again: 4, File: 11}},
			Rings: []vhostuser.RingState{{Index: 1, Num: 16, Desc: 1, Avail: 2, Used: 3, Base: 4, Enabled: true, Kick: 12, Call: 13, Logged: true, LogAt: 5}},
			Log:   &vhostuser.LogState{Size: 8, Offset: 16, File: 14},
		}}},
	}
}

func TestStateFormat(t *testing.T) {
	st := everything()
	statetest.Tags(t, *st)
	statetest.Complete(t, st)
	for _, read := range statetest.Golden(t, "state", st) {
		if _, err := read.Namespaces[0].rows(); err != nil {
			t.Error(err)
		}
	}
}

func TestThawRefuses(t *testing.T) {
	for name, damage := range map[string]func(*State){
		"unknown NIC":       func(st *State) { st.Namespaces[0].NIC = "red/other" },
		"no descriptor":     func(st *State) { st.Namespaces[0].File = 99 },
		"row too large":     func(st *State) { st.Namespaces[0].Rows[1].Number = mostRows },
		"rows out of order": func(st *State) { st.Namespaces[0].Rows[1].Number = 0 },
		"address twice": func(st *State) {
			st.Namespaces[0].Rows[1] = st.Namespaces[0].Rows[0]
			st.Namespaces[0].Rows[1].Number = 1
		},
		"no address":         func(st *State) { st.Namespaces[0].Rows[0].Addr = []byte{1} },
		"no sockets":         func(st *State) { st.Namespaces[0].Rows[0].Sockets = nil },
		"interface, no port": func(st *State) { st.Namespaces = nil },
	} {
		r, _ := namespaceNIC(t)
		st := everything()
		st.Interfaces[0].NIC, st.Cards[0].NIC = "red/web", "red/web"
		damage(st)
		var err error
		r.onLoop(func() { _, _, err = r.Thaw(st, nil) })
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// FuzzThaw: no state breaks the reader.
func FuzzThaw(f *testing.F) {
	b, err := state.Marshal(everything())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		var st State
		if state.Unmarshal(b, &st) != nil {
			return
		}
		for i := range st.Namespaces {
			ns := &st.Namespaces[i]
			rows, err := ns.rows()
			if err != nil {
				continue
			}
			faceOf(rows, 0)
			if len(rows) > mostRows {
				t.Errorf("%d rows", len(rows))
			}
		}
		if st.Switch != nil {
			vswitch.New(vswitch.Config{}).Thaw(st.Switch) // an error
		}
	})
}

// What a next daemon does not take over is named.
func TestObstacles(t *testing.T) {
	r, s := namespaceNIC(t)
	c, end := newContainer(t).conn()
	defer end()
	if err := s.namespace.attach(c); err != nil {
		t.Fatal(err)
	}
	defer s.namespace.detach()
	s.ethernet = &switchPort{host: r.host, of: s, who: "virtual machine one"}
	const card, addresses = "NIC red/web is an interface of virtual machine one", "NIC red/web has the addresses of a container"
	for _, o := range []struct {
		containers, machines bool
		want                 []string
	}{{false, false, []string{addresses, card}}, {true, false, []string{card}}, {false, true, []string{addresses}}, {true, true, nil}} {
		if got := r.Obstacles(o.containers, o.machines); !slices.Equal(got, o.want) {
			t.Errorf("containers %v, machines %v: %q, want %q", o.containers, o.machines, got, o.want)
		}
	}
	s.ethernet = nil
}
