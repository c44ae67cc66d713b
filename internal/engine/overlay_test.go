package engine

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"vrdma/internal/ib"
	"vrdma/internal/link"
	"vrdma/internal/nic"
	"vrdma/internal/overlay"
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
		w.VNI, w.To = vni, to.Addr()
	}
	return w
}

// overlayHosts is two engines with sockets, each with a NIC in networks 5 and 6. The NICs of both
// networks have the same addresses and the same numbers.
func overlayHosts(t *testing.T) (engines [2]*Engine, nics [2][2]*nic.NIC, maps [2]*overlay.Map) {
	t.Helper()
	var udp [2]*link.UDP
	var at [2]netip.Addr
	port := uint16(20000 + rand.IntN(9000))
	for i := range udp {
		err := error(unix.EADDRINUSE)
		for try := 0; try < 100 && errors.Is(err, unix.EADDRINUSE); try++ {
			at[i] = netip.AddrFrom4([4]byte{127, byte(1 + rand.IntN(254)), byte(rand.IntN(256)), byte(1 + rand.IntN(254))})
			udp[i], err = link.ListenUDP(link.UDPOptions{Port: port}, at[i])
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
		e, err := New(Options{Resolver: v})
		if err != nil {
			t.Fatal(err)
		}
		o := link.NewOverlay(link.OverlayConfig{Bind: udp[i], Addrs: at[i : i+1]})
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

// TestOverlayApart: two networks between the same two hosts, whose NICs have the same addresses,
// queue pair numbers and keys. What is sent in one arrives in it, and not in the other.
func TestOverlayApart(t *testing.T) {
	engines, nics, _ := overlayHosts(t)
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
			if c := engines[i].LinkCounters(); c.Overlay != (link.OverlayCounters{}) || c.RcvdPackets == 0 {
				t.Errorf("host %d counts %+v", i, c)
			}
		})
	}
	if p != [2]bool{true, true} {
		t.Error("a vrdma host of the map is not known as one")
	}
}

// TestOverlayGone: what leads to a member that is nowhere any more fails as a dead host's does, and
// goes on when the member is there again.
func TestOverlayGone(t *testing.T) {
	engines, nics, maps := overlayHosts(t)
	qp := func(i int) *testQP { return newProgram(t, engines[i], nics[i][0], nics[i][0].GIDs[0].GID, 0).newQP(rc) }
	a, b, again, peer := qp(0), qp(1), qp(0), qp(1)
	a.timeout = 5 // that it ends soon
	connect(a, b)
	connect(again, peer)
	v := engines[0].opts.Resolver.(*virtual)
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
