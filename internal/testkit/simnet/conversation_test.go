package simnet

import (
	"flag"
	"os"
	"strconv"
	"sync"
	"testing"

	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

var (
	conversations = flag.Int("conversations", 0, "number of random conversations; 0 means a short run, or $VRDMA_CONVERSATIONS")
	firstSeed     = flag.Uint64("seed", 1, "seed of the first random conversation")
)

// weather returns a network of random quality.
func weather(seed uint64) Config {
	n := New(Config{Seed: seed * 31})
	c := Config{Seed: seed, Freeze: 0.01, Delay: 5_000, Jitter: 200_000, Budget: 1 + n.Rand.IntN(64<<10)}
	switch n.Rand.IntN(6) {
	case 0:
		c.Local = true
	case 1: // clean
	case 2:
		c.Drop = 0.01
	case 3:
		c.Drop = 0.1 * n.Rand.Float64()
		c.Duplicate, c.Reorder = 0.05, 0.05
	case 4:
		c.Reorder = 0.2
		c.Duplicate = 0.2
	case 5:
		c.Drop = 0.05
	}
	if n.Rand.IntN(3) != 0 {
		c.Chunk = 1 + n.Rand.Uint32N(8)
	}
	if n.Rand.IntN(3) == 0 {
		c.Packets = true
		c.Corrupt = c.Drop / 2
	}
	if n.Rand.IntN(4) == 0 {
		c.Wire = Wire{Rate: 1e8 << n.Rand.IntN(4), Queue: 40 << 10, Mark: 8 << 10}
	}
	if n.Rand.IntN(3) == 0 {
		c.Later = 0.5 * n.Rand.Float64()
	}
	return c
}

// pair returns two connected RC queue pairs of random configuration, with a side for each.
func pair(t *testing.T, net *Net, num uint32) []*side {
	mtu := uint32(256) << net.Rand.IntN(5)
	attr := func() transport.Attr {
		a := Defaults()
		a.MTU = mtu
		a.SQPSN = net.Rand.Uint32N(1 << 24)
		if net.Rand.IntN(3) == 0 {
			a.SQPSN = 1<<24 - 1 - net.Rand.Uint32N(40)
		}
		a.MinRNRTimer = 1 + uint8(net.Rand.IntN(12))
		a.Timeout = 8 + uint8(net.Rand.IntN(7))
		return a
	}
	aa, ba := attr(), attr()
	aa.MaxRDAtomic = uint8(1 + net.Rand.IntN(16))
	ba.MaxDestRDAtomic = aa.MaxRDAtomic
	ba.MaxRDAtomic = uint8(1 + net.Rand.IntN(4))
	aa.MaxDestRDAtomic = ba.MaxRDAtomic + uint8(net.Rand.IntN(3))
	cfg := func(num uint32) transport.Config {
		return transport.Config{Type: ib.RC, Num: num, MaxBurst: mtu * (1 + net.Rand.Uint32N(8)), Window: 4 + net.Rand.Uint32N(100)}
	}
	a := net.Add(NewNode(nodeSize), cfg(num))
	b := net.Add(NewNode(nodeSize), cfg(num+1))
	for _, e := range []*Endpoint{a, b} {
		fill(net, e.Node.Mem[:targetSize+sourceSize])
	}
	net.Connect(a, b, aa, ba)
	if p := path(net); p.Remote {
		a.QP.SetPath(p)
		if net.Rand.IntN(4) == 0 {
			p.Own = !p.Own // one side does not know, or has wrong information
		}
		b.QP.SetPath(p)
	}
	sides := []*side{newSide(t, a, b), newSide(t, b, a)}
	sides[0].mtu, sides[1].mtu = mtu, mtu
	sides[0].first, sides[1].first = aa.SQPSN, ba.SQPSN
	sides[0].other, sides[1].other = sides[1], sides[0]
	return sides
}

// path returns how a pair sees the network: as one host in full, or as two hosts.
func path(net *Net) transport.Path {
	if net.Local {
		return transport.Path{}
	}
	return transport.Path{
		Remote: net.Rand.IntN(4) != 0, Own: net.Rand.IntN(2) == 0, Window: net.Rand.Uint32N(64 << 10), MaxBurst: net.Rand.Uint32N(16 << 10),
	}
}

// A story counts what happened in conversations.
type story struct {
	transport.Counters
	frozen  int // freezes of a queue pair
	delayed int // accesses to memory that was not available
	wrapped int // queue pairs whose PSNs wrapped
	cnps    int // received CNPs
}

// converse runs one random conversation: one pair of RC queue pairs or several, in both directions.
func converse(t *testing.T, seed uint64) story {
	net := New(weather(seed))
	pairs := 1
	if net.Rand.IntN(10) == 0 {
		pairs = 2 + net.Rand.IntN(6)
	}
	var sides []*side
	for i := range pairs {
		sides = append(sides, pair(t, net, uint32(17+2*i))...)
	}
	for _, s := range sides {
		for range net.Rand.IntN(20) {
			s.post(net, rcOps)
		}
	}
	for round := 0; !finished(sides); round++ {
		if round == 4000 {
			t.Fatalf("conversation does not end")
		}
		// Receives are sometimes late: RNR NAKs must handle that.
		for _, s := range sides {
			for s.ready < len(s.recvs) && net.Rand.IntN(8) != 0 {
				s.postRecv(net)
			}
		}
		// The path information changes sometimes.
		if s := sides[net.Rand.IntN(len(sides))]; round > 0 && s.e.QP.Path().Remote && net.Rand.IntN(3) == 0 {
			p := path(net)
			p.Remote = true
			s.e.QP.SetPath(p)
		}
		net.Run(net.Now+500_000, 100_000)
	}
	if !net.Run(net.Now+1e10, 1_000_000) {
		t.Fatalf("network does not come to rest")
	}
	sum := story{frozen: net.Frozen, delayed: net.Delayed}
	for _, s := range sides {
		s.final()
		add(&sum.Counters, s.e.QP.Counters())
		sum.cnps += s.e.RcvdCNP
		if sn := s.e.QP.Snapshot(); sn.OldestPSN < s.first {
			sum.wrapped++
		}
	}
	return sum
}

func finished(sides []*side) bool {
	for _, s := range sides {
		if s.e.QP.Snapshot().SendTail != uint32(len(s.posted)) || s.rcvd != len(s.recvs) {
			return false
		}
	}
	return true
}

// add adds the counters of interest.
func add(sum, c *transport.Counters) {
	sum.RcvdRNR += c.RcvdRNR
	sum.Duplicates += c.Duplicates
	sum.OutOfSequence += c.OutOfSequence
	sum.Timeouts += c.Timeouts
	sum.ImplicitNaks += c.ImplicitNaks
	sum.Retransmitted += c.Retransmitted
	sum.AckDeferred += c.AckDeferred
	sum.Probes += c.Probes
	sum.Repairs += c.Repairs
	sum.Stashed += c.Stashed
}

// each runs f for many seeds, on all processors. A failure names its seed: repeat it with -seed N -conversations 1.
func each(t *testing.T, full int, f func(t *testing.T, seed uint64)) {
	count := *conversations
	if text := os.Getenv("VRDMA_CONVERSATIONS"); count == 0 && text != "" {
		var err error
		if count, err = strconv.Atoi(text); err != nil {
			t.Fatalf("VRDMA_CONVERSATIONS=%s: want a number", text)
		}
	}
	if count == 0 {
		count = full
		if testing.Short() || raceEnabled {
			count = full / 20
		}
	}
	const workers = 4
	t.Run("workers", func(t *testing.T) {
		for w := range uint64(workers) {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				for i := w; i < uint64(count); i += workers {
					seed := *firstSeed + i
					t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) { f(t, seed) })
				}
			})
		}
	})
}

// TestConversations checks random conversations against the model.
func TestConversations(t *testing.T) {
	var mu sync.Mutex
	var sum story
	each(t, 20_000, func(t *testing.T, seed uint64) {
		c := converse(t, seed)
		mu.Lock()
		defer mu.Unlock()
		add(&sum.Counters, &c.Counters)
		sum.frozen += c.frozen
		sum.delayed += c.delayed
		sum.wrapped += c.wrapped
		sum.cnps += c.cnps
	})
	if *conversations != 1 && (sum.RcvdRNR == 0 || sum.Duplicates == 0 || sum.OutOfSequence == 0 || sum.Timeouts == 0 ||
		sum.ImplicitNaks == 0 || sum.Retransmitted == 0 || sum.AckDeferred == 0 || sum.frozen == 0 || sum.delayed == 0 || sum.wrapped == 0 ||
		sum.Probes == 0 || sum.Repairs == 0 || sum.Stashed == 0 || sum.cnps == 0) {
		t.Errorf("the conversations did not meet every trouble: %+v", sum)
	}
	t.Logf("%+v", sum)
}
