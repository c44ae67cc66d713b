package engine

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/roce"
)

// namespaceResolver has the number of each NIC's site.
type namespaceResolver map[*nic.NIC]ib.NetworkID

func (r namespaceResolver) Resolve(from *nic.NIC, to ib.GID) nic.Way {
	w := nic.Way{To: to.Addr(), Network: r[from]}
	if from.Local(&to) {
		w.NIC = from
	}
	return w
}

// TestSites: each NIC has a way to others of its own, and the same address at two of them is two places. Sites come and go, and
// no count falls.
func TestSites(t *testing.T) {
	shared := ib.GIDOf(netip.MustParseAddr("10.0.0.1"))
	r := namespaceResolver{}
	e, err := New(Options{Resolver: r, Recognise: true, Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	var nics [2]*nic.NIC
	var qps [2]*testQP
	for i := range nics {
		udp, at := listenLoopback(t, roce.UDPOptions{})
		nics[i] = nic.New(nic.Config{Name: "rxe0", GIDs: []nic.GIDEntry{{GID: ib.GIDOf(at)}, {GID: shared}}})
		r[nics[i]] = ib.NamespaceNetwork(1 + uint32(i))
		if err := e.Add(nics[i], nil); err != nil {
			t.Fatal(err)
		}
		if err := e.AddPort(nics[i], r[nics[i]], roce.NewPort(udp), udp.Descriptors(), 1<<20, 4<<20); err != nil {
			t.Fatal(err)
		}
	}
	e.Start()
	t.Cleanup(e.Stop)
	for i, n := range nics {
		qps[i] = newProgram(t, e, n, n.GIDs[0].GID, 0).newQP(rc)
	}
	a, b := qps[0], qps[1]
	connect(a, b)
	const n = 1 << 20
	pattern(a.c.mem[:n], 7)
	write := func() {
		a.post(wr{op: opWrite, flags: signal, n: n, remote: b.c.base, rkey: b.mr.RKey, id: 1})
	}
	write()
	if w := a.wait(); w.status != 0 || !bytes.Equal(a.c.mem[:n], b.c.mem[:n]) {
		t.Errorf("a write from one site to another: %+v", w)
	}
	var before, after roce.Counters
	e.Do(func() {
		before = e.LinkCounters()
		if err := e.AddPort(nics[0], r[nics[0]], nil, nil, 0, 0); err == nil {
			t.Error("a site of a number that is taken")
		}
		for i, m := range nics {
			if c := e.first.adapters.at[netAddr{r[m], shared}]; c == nil || c.nic != m {
				t.Errorf("the address that both have leads to %v at site %d", c, i)
			}
		}
		for _, m := range nics {
			e.RemoveNamespace(m, r[m])
			e.RemoveNamespace(m, r[m])
		}
		after = e.LinkCounters()
		if e.first.net.any() || len(e.first.net.fds) > 0 {
			t.Error("something is left of the sites")
		}
	})
	if before.RcvdBytes < n || after.RcvdBytes < before.RcvdBytes || after.SentBytes < before.SentBytes {
		t.Errorf("counted %+v, and without sites %+v", before, after)
	}
	write() // it leads nowhere, and is lost
	e.Do(func() {})
}

// TestFarewell: the MADs of a NIC that has lost its namespace reach a NIC of this host that has a connection with it, and no
// other NIC with the same address.
func TestFarewell(t *testing.T) {
	shared := ib.GIDOf(netip.MustParseAddr("10.0.0.2"))
	r := namespaceResolver{}
	e, err := New(Options{Resolver: r, Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	var nics [3]*nic.NIC
	var posts [3]*post
	for i := range nics {
		udp, at := listenLoopback(t, roce.UDPOptions{})
		gids := []nic.GIDEntry{{GID: ib.GIDOf(at)}}
		if i > 0 {
			gids = append(gids, nic.GIDEntry{GID: shared})
		}
		nics[i], posts[i] = nic.New(nic.Config{Name: "rxe0", GIDs: gids}), &post{ends: i == 2}
		r[nics[i]] = ib.NamespaceNetwork(1 + uint32(i))
		if err := e.Add(nics[i], posts[i]); err != nil {
			t.Fatal(err)
		}
		if err := e.AddPort(nics[i], r[nics[i]], roce.NewPort(udp), udp.Descriptors(), 1<<20, 4<<20); err != nil {
			t.Fatal(err)
		}
	}
	e.Start()
	t.Cleanup(e.Stop)
	own := nics[0].GIDs[0].GID
	e.Do(func() {
		e.RemoveNamespace(nics[0], r[nics[0]])
		e.MADs(nics[0]).SendMAD(own, shared, make([]byte, 256))
	})
	eventually(t, "the datagram", func() (all bool) {
		e.Do(func() { all = len(posts[2].from) == 1 && posts[2].from[0] == own })
		return all
	})
	e.Do(func() {
		posts[2].ends = false
		e.MADs(nics[0]).SendMAD(own, shared, make([]byte, 256))
	})
	e.Do(func() {})
	e.Do(func() {
		if len(posts[0].from)+len(posts[1].from) > 0 || len(posts[2].from) != 1 {
			t.Errorf("datagrams: %v, %v, %v; want one, for the third", posts[0].from, posts[1].from, posts[2].from)
		}
	})
}

// listenLoopback opens the sockets of an address that nobody has.
func listenLoopback(t *testing.T, o roce.UDPOptions) (udp *roce.UDP, at netip.Addr) {
	t.Helper()
	err := error(unix.EADDRINUSE)
	for try := 0; try < 100 && errors.Is(err, unix.EADDRINUSE); try++ {
		at = netip.AddrFrom4([4]byte{127, byte(1 + rand.IntN(254)), byte(rand.IntN(256)), byte(1 + rand.IntN(254))})
		udp, err = roce.ListenUDP(o, at)
	}
	if err != nil {
		t.Fatal(err)
	}
	return udp, at
}

// TestRegroup: when a site has other addresses, groups are joined again only of a family whose interfaces are others.
func TestRegroup(t *testing.T) {
	r := namespaceResolver{}
	e, err := New(Options{Resolver: r})
	if err != nil {
		t.Fatal(err)
	}
	made := 0
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	udp, at := listenLoopback(t, roce.UDPOptions{Interface: func(netip.Addr) int { return lo.Index }, Socket: func(family int) (int, error) {
		made++
		return unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_UDP)
	}})
	n := nic.New(nic.Config{Name: "rxe0", GIDs: []nic.GIDEntry{{GID: ib.GIDOf(at)}}})
	r[n] = ib.NamespaceNetwork(1)
	if err := e.Add(n, nil); err != nil {
		t.Fatal(err)
	}
	if err := e.AddPort(n, r[n], roce.NewPort(udp), udp.Descriptors(), 1<<20, 4<<20); err != nil {
		t.Fatal(err)
	}
	e.Start()
	t.Cleanup(e.Stop)
	const ud = 4
	q := newProgram(t, e, n, n.GIDs[0].GID, 0).newQP(ud)
	q.datagrams(7)
	for _, g := range []string{"239.1.2.3", "239.1.2.4", "ff0e::1"} {
		q.c.do(func() error { return q.c.s.AttachMcast(q.info.Handle, ib.GIDOf(netip.MustParseAddr(g)), 0) })
	}
	e.Do(func() {
		if c := e.CountGroups(n); c != [2]int{2, 1} {
			t.Errorf("groups: %v", c)
		}
		for _, c := range []struct {
			families [2]bool
			sockets  int
		}{{[2]bool{}, 0}, {[2]bool{false, true}, 0}, {[2]bool{true, false}, 2}} {
			made = 0
			if err := e.Readdress(n, r[n], c.families, udp.Descriptors); err != nil || made != c.sockets {
				t.Errorf("%v: %d sockets were made, want %d: %v", c.families, made, c.sockets, err)
			}
			if len(e.first.net.groups.of) != 3 || len(e.first.net.groups.fds) != 2 {
				t.Errorf("%v: %d groups, %d with a socket", c.families, len(e.first.net.groups.of), len(e.first.net.groups.fds))
			}
		}
		e.RemoveNamespace(n, r[n])
	})
}
