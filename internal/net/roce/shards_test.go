package roce

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/net/wire"
)

// shardedUDP opens sockets with shards at a random address of the loopback network: other tests may run on this machine.
func shardedUDP(t *testing.T, o UDPOptions) (*UDP, netip.Addr) {
	t.Helper()
	for range 100 {
		at := netip.AddrFrom4([4]byte{127, byte(1 + rand.IntN(254)), byte(rand.IntN(256)), byte(1 + rand.IntN(254))})
		u, err := ListenUDP(o, at)
		if err == nil {
			t.Cleanup(func() { u.Close() })
			return u, at
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			t.Fatal(err)
		}
	}
	t.Fatal("no address is free")
	return nil, netip.Addr{}
}

// datagramTo is a datagram that looks like a packet for a queue pair.
func datagramTo(qp uint32) []byte {
	b := make([]byte, 64)
	wire.BTH(b).SetDestQP(qp)
	return b
}

// arrivals are the shards at which datagrams have arrived, by queue pair; -1: at none.
func arrivals(t *testing.T, u *UDP, shards int, qps []uint32) (at []int) {
	t.Helper()
	got := make(map[uint32]int)
	for i := range shards {
		bind := Bind(u)
		if i > 0 {
			bind = u.Shard(i)
		}
		for {
			in := receiveSlots()
			n, err := bind.Receive(in)
			if err != nil {
				t.Fatal(err)
			}
			if n == 0 {
				break
			}
			for _, m := range in[:n] {
				size := m.Segment
				if size == 0 {
					size = len(m.Data)
				}
				for k := 0; k+size <= len(m.Data); k += size {
					if size >= wire.BTHSize {
						got[wire.BTH(m.Data[k:]).DestQP()] = i
					} else {
						got[0] = i
					}
				}
			}
		}
	}
	for _, qp := range qps {
		if i, ok := got[qp]; ok {
			at = append(at, i)
		} else {
			at = append(at, -1)
		}
	}
	return at
}

// sendEach sends a datagram for each queue pair, from a source port of its class.
func sendEach(t *testing.T, from *UDP, at, to netip.Addr, port uint16, qps []uint32) {
	t.Helper()
	for _, qp := range qps {
		id, _, ok := from.Source(at, qp)
		if !ok {
			t.Fatal("no source")
		}
		if _, err := from.Send([]Message{{Data: datagramTo(qp), Source: id, Remote: netip.AddrPortFrom(to, port)}}); err != nil {
			t.Fatal(err)
		}
	}
}

// someQPs are numbers of all buckets, and queue pair 1.
func someQPs() (qps []uint32) {
	for b := range uint32(Buckets) {
		qps = append(qps, rand.Uint32N(1<<18-4)<<6|0x100|b)
	}
	return append(qps, wire.GSIQP)
}

// TestSteering checks that packets arrive at the shard that the table names for their bucket, also after the table has changed,
// and those of the connection manager and what is too short for a number at the first.
func TestSteering(t *testing.T) {
	const shards = 5
	u, at := shardedUDP(t, UDPOptions{Shards: shards, Port: 14792})
	if u.Shards() != shards {
		t.Fatalf("%d shards, want %d", u.Shards(), shards)
	}
	from, local := shardedUDP(t, UDPOptions{Port: 14793})
	for round := range 20 {
		var table SteeringTable
		for b := range table {
			switch {
			case round < 10:
				table[b] = uint8(rand.IntN(shards))
			case round > 10:
				table[b] = uint8(b * shards / Buckets)
			}
		}
		if err := u.Steer(&table); err != nil {
			t.Fatal(err)
		}
		qps := someQPs()
		sendEach(t, from, local, at, 14792, qps)
		for i, got := range arrivals(t, u, shards, qps) {
			want := int(table[BucketOf(qps[i])])
			if qps[i] == wire.GSIQP {
				want = 0
			}
			if got != want {
				t.Errorf("round %d: a packet for queue pair %#x of bucket %d arrived at shard %d, want %d", round, qps[i], BucketOf(qps[i]), got, want)
			}
		}
		id, _, _ := from.Source(local, 0)
		if _, err := from.Send([]Message{{Data: []byte("short"), Source: id, Remote: netip.AddrPortFrom(at, 14792)}}); err != nil {
			t.Fatal(err)
		}
		if got := arrivals(t, u, shards, []uint32{0}); got[0] != 0 {
			t.Errorf("a short datagram arrived at shard %d", got[0])
		}
	}
}

// TestShardsAreOneDaemons: a second daemon cannot have the address, whichever options it uses.
func TestShardsAreOneDaemons(t *testing.T) {
	for _, shards := range [][2]int{{3, 3}, {3, 1}, {1, 3}} {
		u, at := shardedUDP(t, UDPOptions{Shards: shards[0], Port: 14792})
		if o, err := ListenUDP(UDPOptions{Shards: shards[1], Port: 14792}, at); !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("%d and %d shards: %v, want %v", shards[0], shards[1], err, unix.EADDRINUSE)
			if err == nil {
				o.Close()
			}
		}
		u.Close()
	}
}

// TestShardsInherited: the next daemon takes the sockets of a daemon with another number of shards. The old one receives all
// packets until the next one steers them, and none is lost when the old one closes its sockets.
func TestShardsInherited(t *testing.T) {
	from, local := shardedUDP(t, UDPOptions{Port: 14793})
	for _, c := range [][2]int{{1, 1}, {1, 3}, {3, 1}, {3, 2}, {2, 4}, {4, 4}} {
		old, at := shardedUDP(t, UDPOptions{Shards: c[0], Port: 14792})
		var table SteeringTable
		for b := range table {
			table[b] = home(b, c[0])
		}
		if err := old.Steer(&table); err != nil {
			t.Fatal(err)
		}
		next, err := ListenUDP(UDPOptions{Shards: c[1], Port: 14792, Inherited: func(uint16, netip.Addr) (fds []int) {
			for _, fd := range old.Sockets()[at] {
				n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
				if err != nil {
					t.Fatal(err)
				}
				fds = append(fds, n)
			}
			return fds
		}}, at)
		if err != nil {
			t.Fatal(err)
		}
		defer next.Close()
		check := func(what string, u *UDP, shards int, table *SteeringTable, qps []uint32) {
			t.Helper()
			for i, got := range arrivals(t, u, shards, qps) {
				if want := int(table[BucketOf(qps[i])]); got != want && qps[i] != wire.GSIQP {
					t.Errorf("%v shards, %s: a packet of bucket %d arrived at shard %d, want %d", c, what, BucketOf(qps[i]), got, want)
				}
			}
		}
		qps := someQPs()
		sendEach(t, from, local, at, 14792, qps)
		check("before", old, c[0], &table, qps)
		for b := range table {
			table[b] = home(b, c[1])
		}
		if err := next.Steer(&table); err != nil {
			t.Fatal(err)
		}
		qps = someQPs()
		sendEach(t, from, local, at, 14792, qps)
		old.Close()
		check("when the old one ends", next, c[1], &table, qps)
		qps = someQPs()
		sendEach(t, from, local, at, 14792, qps)
		check("after", next, c[1], &table, qps)
	}
}

// home spreads buckets over shards.
func home(bucket, shards int) uint8 { return uint8(bucket % shards) }

// TestSourceClasses: packets for queue pairs whose numbers differ in the low bits leave from different ports, whichever queue
// pair sends them, so that the kernel never puts them into one train.
func TestSourceClasses(t *testing.T) {
	net := NewFakeNet()
	ports := make(map[uint32]netip.AddrPort)
	net.Way = func(d *FakeDatagram) {
		class := wire.BTH(d.Data).DestQP() % SourceClasses
		if was, ok := ports[class]; ok && was != d.From {
			t.Errorf("class %d leaves from %v and %v", class, was, d.From)
		}
		ports[class] = d.From
	}
	p := NewPort(net.Bind(FakeOptions{}, hostA))
	for range 500 {
		p.SendCNP(0, hostA, hostB, rand.Uint32N(1<<24), rand.Uint32N(1<<24))
		p.Flush()
	}
	seen := make(map[netip.AddrPort]bool)
	for _, at := range ports {
		seen[at] = true
	}
	if len(seen) != SourceClasses {
		t.Errorf("%d ports for %d classes", len(seen), SourceClasses)
	}
}
