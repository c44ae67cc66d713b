package engine

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/net/peers"
	"vrdma.dev/vrdma/internal/net/roce"
	"vrdma.dev/vrdma/internal/net/wire"
)

// virtual is the Resolver of hosts whose NICs are in virtual networks.
type virtual struct {
	vni  map[*nic.NIC]uint32
	here *overlay.Map
}

func (v *virtual) Resolve(from *nic.NIC, to ib.GID) (w nic.Way) {
	vni := v.vni[from]
	for n, of := range v.vni {
		if of == vni && n.GIDs[0].GID == to {
			w.NIC = n
		}
	}
	if m := v.here.Find(vni, to.Addr()); w.NIC != nil || m != nil && !m.Host.Self || to.IsMulticast() {
		w.Network, w.To = ib.VirtualNetwork(vni), to.Addr()
	}
	return w
}

// overlayHosts is two engines with sockets, each with a NIC in networks 5 and 6. The NICs of both
// networks have the same addresses and the same numbers.
func overlayHosts(t *testing.T) (engines [2]*Engine, nics [2][2]*nic.NIC, maps [2]*overlay.Map) {
	t.Helper()
	return overlayHostsWith(t, func(int, *overlay.Host, *Options) {})
}

// overlayHostsWith has each host's options changed, and what its map says of the other.
func overlayHostsWith(t *testing.T, change func(i int, other *overlay.Host, o *Options)) (engines [2]*Engine, nics [2][2]*nic.NIC, maps [2]*overlay.Map) {
	t.Helper()
	var udp [2]*roce.UDP
	var at [2]netip.Addr
	port := uint16(20000 + rand.IntN(9000))
	for i := range udp {
		err := error(unix.EADDRINUSE)
		for try := 0; try < 100 && errors.Is(err, unix.EADDRINUSE); try++ {
			at[i] = netip.AddrFrom4([4]byte{127, byte(1 + rand.IntN(254)), byte(rand.IntN(256)), byte(1 + rand.IntN(254))})
			udp[i], err = roce.ListenUDP(roce.UDPOptions{Port: port}, at[i])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range engines {
		var hosts [2]*overlay.Host
		for k := range hosts {
			hosts[k] = &overlay.Host{Name: fmt.Sprint(k), Addrs: []netip.Addr{at[k]}, Port: port, Self: k == i, Features: features}
		}
		var opts Options
		change(i, hosts[1-i], &opts)
		var networks []overlay.Network
		for _, vni := range []uint32{5, 6} {
			n := overlay.Network{VNI: vni, Name: fmt.Sprint(vni)}
			for k := range hosts {
				a := address(byte(1 + k))
				n.Members = append(n.Members, overlay.Member{Addr: a, MAC: overlay.MACOf(a), Host: hosts[k]})
			}
			networks = append(networks, n)
		}
		var err error
		if maps[i], err = overlay.NewMap(networks); err != nil {
			t.Fatal(err)
		}
		v := &virtual{vni: map[*nic.NIC]uint32{}, here: maps[i]}
		opts.Resolver = v
		e, err := New(opts)
		if err != nil {
			t.Fatal(err)
		}
		o := roce.NewOverlay(roce.OverlayConfig{Bind: udp[i], Addrs: at[i : i+1]})
		for k := range nics[i] {
			nics[i][k] = twin(fmt.Sprint(i, k), address(byte(1+i)))
			v.vni[nics[i][k]] = uint32(5 + k)
			if err := e.Add(nics[i][k], nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := e.AddOverlay(o, udp[i].Descriptors(), 1<<20, 4<<20); err != nil {
			t.Fatal(err)
		}
		e.SetMap(maps[i])
		e.Start()
		t.Cleanup(func() {
			e.Stop()
			o.Close()
		})
		engines[i] = e
	}
	return engines, nics, maps
}

// TestOverlayApart: two networks between the same two hosts, whose NICs have the same addresses, queue pair numbers and
// keys. Data that is sent in one arrives there, and not in the other.
func TestOverlayApart(t *testing.T) {
	engines, nics, _ := overlayHosts(t)
	var qs [2][2]*testQP // by host, by network
	for i := range qs {
		for k := range qs[i] {
			n := nics[i][k]
			qs[i][k] = newProgram(t, engines[i], n, n.GIDs[0].GID, 0).unsteered().newQP(rc)
		}
	}
	for k := range 2 {
		connect(qs[0][k], qs[1][k])
	}
	if a, b := qs[1][0], qs[1][1]; a.info.Num != b.info.Num || a.mr.RKey != b.mr.RKey {
		t.Fatalf("numbers differ: %+v, %+v", a.info, b.info)
	}
	for _, n := range []uint32{1, 1000, 5000, 65536, 1 << 20} {
		for k := range 2 {
			a, b, other := qs[0][k], qs[1][k], qs[1][1-k]
			pattern(a.c.mem[:n], byte(int(n)+k))
			clear(b.c.mem[:n])
			before := bytes.Clone(other.c.mem[:n])
			a.post(wr{op: opWrite, flags: signal, n: n, remote: b.c.base, rkey: b.mr.RKey})
			if w := a.wait(); w.status != 0 {
				t.Fatalf("network %d, %d bytes: %+v", 5+k, n, w)
			}
			if !bytes.Equal(b.c.mem[:n], a.c.mem[:n]) {
				t.Errorf("network %d, %d bytes: others arrived", 5+k, n)
			}
			if !bytes.Equal(other.c.mem[:n], before) {
				t.Errorf("network %d, %d bytes: something arrived in the other network", 5+k, n)
			}
		}
	}
	var p [2]bool
	for i := range engines {
		engines[i].Do(func() {
			path := qs[i][0].task().q.Transport().Path()
			p[i] = path.Remote && path.Own
			if c := engines[i].LinkCounters(); c.Overlay != (roce.OverlayCounters{}) || c.RcvdPackets == 0 {
				t.Errorf("host %d counts %+v", i, c)
			}
		})
	}
	if p != [2]bool{true, true} {
		t.Error("a vrdma host of the map is not known as one")
	}
}

// TestOverlayAcquainted: two hosts with separate stores have declared each other as hosts of type linux. In each
// network they find out that the other is a vrdma host. If one does not announce it, the other treats it as declared.
func TestOverlayAcquainted(t *testing.T) {
	for _, c := range []struct {
		name      string
		recognise [2]bool
		own       bool
	}{
		{"both", [2]bool{true, true}, true},
		{"one", [2]bool{true, false}, false},
		{"none", [2]bool{false, false}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			engines, nics, maps := overlayHostsWith(t, func(i int, other *overlay.Host, o *Options) {
				other.Linux, other.Features = true, 0
				o.Recognise = c.recognise[i]
			})
			var qs [2][2]*testQP // by host, by network
			for i := range qs {
				for k := range qs[i] {
					n := nics[i][k]
					qs[i][k] = newProgram(t, engines[i], n, n.GIDs[0].GID, 0).newQP(rc)
				}
			}
			for k := range 2 {
				connect(qs[0][k], qs[1][k])
			}
			// judged is what host i has found out of the other in a network: nothing yet, or whether it is a vrdma host.
			judged := func(i, k int) (done, own bool) {
				engines[i].Do(func() {
					own = qs[i][k].task().q.Transport().Path().Own
					table := engines[i].first.net.virtual.in(ib.VirtualNetwork(uint32(5 + k)))
					if table == nil {
						done = !c.recognise[i]
						return
					}
					for _, s := range table.List() {
						// Under load one may be foreign until it is asked again.
						done = done || s.Kind != peers.Asking && (own || !c.own)
					}
				})
				return done, own
			}
			for i := range 2 {
				for k := range 2 {
					done, own := false, false
					for end := time.Now().Add(time.Minute); !done && time.Now().Before(end); time.Sleep(time.Millisecond) {
						done, own = judged(i, k)
					}
					if !done || own != c.own {
						t.Fatalf("host %d, network %d: known %v, a vrdma host %v, want %v", i, 5+k, done, own, c.own)
					}
				}
			}
			// Three packets; with filler all are as long as a first one with an immediate.
			const n = 3 * 4096
			want := uint64(3*(overlay.Head4+wire.BTHSize+4096+wire.ICRCSize) + wire.RETHSize)
			if c.own {
				want = 3 * (overlay.Head4 + wire.BTHSize + wire.RETHSize + wire.ImmDtSize + 4096 + wire.ICRCSize)
			}
			for k := range 2 {
				a, b := qs[0][k], qs[1][k]
				write := func(i int) (packets, sent uint64) {
					pattern(a.c.mem[:n], byte(i+k))
					var before, after roce.Counters
					engines[0].Do(func() { before = engines[0].LinkCounters() })
					a.post(wr{op: opWrite, flags: signal, n: n, remote: b.c.base, rkey: b.mr.RKey})
					if w := a.wait(); w.status != 0 || !bytes.Equal(b.c.mem[:n], a.c.mem[:n]) {
						t.Fatalf("network %d: %+v, or others arrived", 5+k, w)
					}
					engines[0].Do(func() { after = engines[0].LinkCounters() })
					return after.SentPackets - before.SentPackets, after.SentBytes - before.SentBytes
				}
				packets, sent := uint64(0), uint64(0)
				for i := 0; i < 100 && packets != 3; i++ { // a question may leave meanwhile
					packets, sent = write(i)
				}
				if packets != 3 || sent != want {
					t.Errorf("network %d: a WRITE of three packets left in %d, of %d bytes; want %d", 5+k, packets, sent, want)
				}
			}
			// A map that says nothing new takes nothing from queue pairs; where the address is another host's now, that is asked.
			sure := func(i, k int) bool {
				own := false
				for end := time.Now().Add(time.Minute); !own && time.Now().Before(end); time.Sleep(time.Millisecond) {
					_, own = judged(i, k)
				}
				return own
			}
			if c.own {
				moved := movedMap(t, maps[0])
				engines[0].Do(func() {
					engines[0].first.clock.now += 6e9 // so that nobody was heard of lately
					engines[0].SetMap(maps[0])
					for k := range 2 {
						if !qs[0][k].task().q.Transport().Path().Own {
							t.Errorf("network %d: the same map again has taken the features away", 5+k)
						}
					}
					engines[0].SetMap(moved)
					for k := range 2 {
						if qs[0][k].task().q.Transport().Path().Own {
							t.Errorf("network %d: another host has the address, and is taken for the former", 5+k)
						}
					}
				})
				for k := range 2 {
					if !sure(0, k) {
						t.Errorf("network %d: who has the address now was not asked", 5+k)
					}
				}
			}
			// A map that knows the host has the last word, and one without the network ends it.
			engines[0].Do(func() {
				engines[0].SetMap(maps[0])
				if got := len(engines[0].first.net.virtual.of); c.recognise[0] != (got == 2) {
					t.Errorf("%d tables behind the same map", got)
				}
				lonely, err := overlay.NewMap([]overlay.Network{*maps[0].Network(5)})
				if err != nil {
					t.Error(err)
					return
				}
				engines[0].SetMap(lonely)
				if got := len(engines[0].first.net.virtual.of); c.recognise[0] != (got == 1) {
					t.Errorf("%d tables behind a map with one network", got)
				}
			})
		})
	}
}

// movedMap is m where the second members of the networks are on a host with another name.
func movedMap(t *testing.T, m *overlay.Map) *overlay.Map {
	t.Helper()
	var list []overlay.Network
	h := *m.Network(5).Members[1].Host
	h.Name = "other"
	for _, vni := range []uint32{5, 6} {
		n := *m.Network(vni)
		n.Members = slices.Clone(n.Members)
		n.Members[1].Host = &h
		list = append(list, n)
	}
	moved, err := overlay.NewMap(list)
	if err != nil {
		t.Fatal(err)
	}
	return moved
}

// TestOverlayStranger: a NIC does not answer the hello of a member that its rules reject, but answers others.
func TestOverlayStranger(t *testing.T) {
	engines, nics, _ := overlayHostsWith(t, func(i int, other *overlay.Host, o *Options) {
		other.Linux, other.Features = true, 0
		o.Recognise = true
	})
	from, to := nics[0][0].GIDs[0].GID, nics[1][0].GIDs[0].GID
	guard(t, engines[1], nics[1][0], closedTo(from))
	for k, want := range []peers.Kind{peers.Foreign, peers.Own} {
		vni := uint32(5 + k)
		kind := peers.Asking
		for end := time.Now().Add(time.Minute); kind != want && time.Now().Before(end); time.Sleep(time.Millisecond) {
			engines[0].Do(func() {
				others := engines[0].first.net.peersOf(ib.VirtualNetwork(vni), to.Addr())
				others.Meet(engines[0].first.clock.now, from, to)
				engines[0].first.net.virtual.note(others)
				for _, s := range others.List() {
					kind = s.Kind
				}
			})
		}
		var answered uint64
		engines[0].Do(func() {
			list, count := engines[0].Peers()
			if !slices.ContainsFunc(list, func(s peers.Status) bool { return s.GID == to && s.Network == fmt.Sprint(vni) && s.Kind == want }) || count.Asked == 0 {
				t.Errorf("network %d: status shows %+v, %+v", vni, list, count)
			}
		})
		engines[1].Do(func() {
			if others := engines[1].first.net.virtual.in(ib.VirtualNetwork(vni)); others != nil {
				answered = others.Counters().Answered
			}
		})
		if kind != want || (answered != 0) != (want == peers.Own) {
			t.Errorf("network %d: the NIC's host is held for %v and has answered %d questions, want %v", vni, kind, answered, want)
		}
	}
}

// TestOverlayGone: requests to a member that is gone fail as with a dead host, and continue when the member is back.
func TestOverlayGone(t *testing.T) {
	engines, nics, maps := overlayHosts(t)
	qp := func(i int) *testQP { return newProgram(t, engines[i], nics[i][0], nics[i][0].GIDs[0].GID, 0).newQP(rc) }
	a, b, again, peer := qp(0), qp(1), qp(0), qp(1)
	a.timeout = 5 // that it ends soon
	connect(a, b)
	connect(again, peer)
	v := engines[0].first.opts.Resolver.(*virtual)
	set := func(m *overlay.Map) {
		engines[0].Do(func() {
			v.here = m
			for n := range v.vni {
				n.Reroute()
			}
			engines[0].SetMap(m)
		})
	}
	lonely, err := overlay.NewMap([]overlay.Network{{VNI: 5, Name: "5", Members: maps[0].Network(5).Members[:1]}})
	if err != nil {
		t.Fatal(err)
	}
	set(lonely)
	write := func(q, to *testQP) uint32 {
		q.post(wr{op: opWrite, flags: signal, n: 8, remote: to.c.base, rkey: to.mr.RKey})
		return q.wait().status
	}
	const retryExceeded = 12
	if st := write(a, b); st != retryExceeded {
		t.Errorf("to a member that is gone: status %d, want %d", st, retryExceeded)
	}
	set(maps[0])
	if st := write(again, peer); st != 0 {
		t.Errorf("to a member that is back: status %d", st)
	}
}
