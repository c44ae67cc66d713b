package guest

import (
	"fmt"
	"hash/crc32"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/net/pcap"
	"vrdma.dev/vrdma/internal/net/wire"
	"vrdma.dev/vrdma/internal/testkit/golden"
)

// witness watches the cable for the three things that make a conversation with the guest
// fail through no fault of ours.
//
// rxe (Linux 6.1) loses its place when the ACK of a message arrives while it sends that
// message again: it moves on without completing it, and its next retry sends an empty
// packet in its stead and everything behind it with PSNs that are one too high. No peer
// can mend that; on the wire it is a request that comes again under its PSN and is not what
// it was.
//
// It (still as of Linux 6.1) takes nothing more from a UC queue pair once a write of several
// packets has lost one behind its first: it waits for the rest of that write, whose PSNs are
// over. Where a cable does harm, not one message may arrive then. Where it does none, a torn
// write is our fault, so the cable's word counts too.
//
// And one of the two hosts may get no processor for longer than a queue pair's retries
// last: the guest is emulated, and shares two processors with everything else. On the wire
// that is a host that is spoken to, again and again, and says nothing.
type witness struct {
	mu      sync.Mutex // guards all below
	request map[place]uint32
	changed []string
	write   map[uint32]uint32 // for each UC queue pair of the guest: the PSN that continues a write
	torn    []string
	said    map[netip.Addr]*speech
	longest time.Duration
	silent  netip.Addr
}

// place is where a request belongs.
type place struct {
	to  netip.Addr
	qp  uint32
	psn uint32
}

// speech is what a host has sent since the other one last sent.
type speech struct {
	since   time.Time
	packets int
}

// patienceOver is the silence after which a host is to blame: a little less than the shortest retries of any tool,
// eight times 67 ms.
const patienceOver = 400 * time.Millisecond

// see takes a frame.
func (w *witness) see(frame []byte) {
	if inside, ok := golden.Inside(frame); ok {
		frame = inside
	}
	p, ok := golden.Parse(frame, pcap.Ethernet)
	if !ok {
		return
	}
	packet, err := wire.Parse(p.Data)
	if err != nil {
		return
	}
	var flow wire.Flow
	flow.Set(p.Src, p.Dst)
	if flow.Sum(packet, p.ID) != packet.ICRC() {
		return // damaged on the cable: the receiver drops it
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hear(time.Now(), p.Src.Addr(), p.Dst.Addr())
	if slices.Contains([]string{guestIP4, guestIP6, guestNetIP4, guestNetIP6}, p.Src.Addr().String()) {
		w.compare(packet, p.Dst.Addr())
	} else {
		w.follow(packet)
	}
}

// hear notes which host sent; w.mu is held.
func (w *witness) hear(now time.Time, from, to netip.Addr) {
	if s := w.said[to]; s != nil && s.packets > 0 {
		s.packets = 0 // they are answered
	}
	s := w.said[from]
	if s == nil {
		s = &speech{}
		w.said[from] = s
	}
	if s.packets++; s.packets == 1 {
		s.since = now
	}
	// Two packets, because the last packet of a conversation needs no answer.
	if d := now.Sub(s.since); s.packets > 2 && d > w.longest {
		w.longest, w.silent = d, to
	}
}

// compare compares a request of the guest with its first transmission; w.mu is held.
func (w *witness) compare(p wire.Packet, to netip.Addr) {
	f := p.Format()
	if f.Service != wire.RC || f.Operation == wire.Ack || f.Operation == wire.AtomicAck || f.Operation == wire.ReadResponse {
		return
	}
	b := p.BTH()
	// The IP identification, and so the ICRC, changes each time. AckReq may change.
	data := p.Bytes()
	sum := crc32.ChecksumIEEE(data[wire.BTHSize : len(data)-wire.ICRCSize])
	sum = crc32.Update(sum, crc32.IEEETable, data[:2])
	at := place{to, b.DestQP(), b.PSN()}
	if old, again := w.request[at]; again && old != sum {
		w.changed = append(w.changed, p.String())
	}
	w.request[at] = sum
}

// follow notes UC writes to the guest that continue with something else; w.mu is held.
func (w *witness) follow(p wire.Packet) {
	f := p.Format()
	if f.Service != wire.UC {
		return
	}
	b := p.BTH()
	qp, psn := b.DestQP(), b.PSN()
	want, open := w.write[qp]
	switch {
	case open && (f.Operation != wire.Write || f.Position&wire.First != 0 || psn != want):
		w.torn = append(w.torn, p.String())
	case f.Operation == wire.Write && (f.Position == wire.First || open && f.Position == wire.Middle):
		w.write[qp] = (psn + 1) & 0xffffff
		return
	}
	delete(w.write, qp)
}

// begin forgets everything seen.
func (w *witness) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.request, w.said = map[place]uint32{}, map[netip.Addr]*speech{}
	w.write = map[uint32]uint32{}
	w.changed, w.torn, w.longest = nil, nil, 0
}

// excuse returns why a conversation that failed since begin may be tried again; "" if there is no reason. harmed says
// that the cable has harmed packets since then.
func (w *witness) excuse(harmed bool) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case len(w.changed) > 0:
		return fmt.Sprintf("rxe has lost its place: %d requests came again as something else, the first as %s", len(w.changed), w.changed[0])
	case harmed && len(w.torn) > 0:
		return fmt.Sprintf("rxe waits for the rest of a write: %d of UC lost packets, the first before %s", len(w.torn), w.torn[0])
	case w.longest > patienceOver:
		return fmt.Sprintf("%v was silent for %v", w.silent, w.longest.Round(time.Millisecond))
	}
	return ""
}

// TestWitness: what counts as an excuse, and what does not.
func TestWitness(t *testing.T) {
	ours, theirs := netip.MustParseAddr(ourIP4), netip.MustParseAddr(guestIP4)
	packet := func(code wire.Opcode, psn uint32, payload string) wire.Packet {
		p := wire.Make(make([]byte, 200), code, len(payload))
		p.BTH().SetDestQP(7)
		p.BTH().SetPSN(psn)
		copy(p.Payload(), payload)
		return p
	}
	send := func(psn uint32, payload string) wire.Packet { return packet(wire.RCSendOnly, psn, payload) }
	// follow shows the witness UC packets, with the PSN behind the one before unless they jump.
	type uc struct {
		code wire.Opcode
		jump uint32
	}
	follow := func(ps ...uc) func(w *witness) {
		return func(w *witness) {
			psn := uint32(0xfffffe)
			for _, p := range ps {
				psn = (psn + 1 + p.jump) & 0xffffff
				w.follow(packet(p.code, psn, "abcd"))
			}
		}
	}
	at := func(ms int) time.Time { return time.UnixMilli(int64(1000 + ms)) }
	for _, c := range []struct {
		name string
		do   func(w *witness)
		want bool
	}{
		{"nothing", func(*witness) {}, false},
		{"the same again", func(w *witness) { w.compare(send(1, "abcd"), ours); w.compare(send(1, "abcd"), ours) }, false},
		{"another", func(w *witness) { w.compare(send(1, "abcd"), ours); w.compare(send(2, ""), ours) }, false},
		{"changed", func(w *witness) { w.compare(send(1, "abcd"), ours); w.compare(send(1, ""), ours) }, true},
		{"answered", func(w *witness) {
			for i := range 100 {
				w.hear(at(100*i), ours, theirs)
				w.hear(at(100*i+50), theirs, ours)
			}
		}, false},
		{"a whole write", follow(uc{wire.UCWriteFirst, 0}, uc{wire.UCWriteMiddle, 0}, uc{wire.UCWriteLastImm, 0}, uc{wire.UCSendOnly, 0}), false},
		{"a write without a beginning", follow(uc{wire.UCSendOnly, 0}, uc{wire.UCWriteMiddle, 1}, uc{wire.UCWriteLast, 0}, uc{wire.UCSendOnly, 0}), false},
		{"a write without a middle", follow(uc{wire.UCWriteFirst, 0}, uc{wire.UCWriteLast, 1}), true},
		{"a write without an end", follow(uc{wire.UCWriteFirst, 0}, uc{wire.UCWriteOnly, 1}), true},
		{"a send without an end", follow(uc{wire.UCSendFirst, 0}, uc{wire.UCSendFirst, 1}), false},
		{"a pause", func(w *witness) { w.hear(at(0), ours, theirs); w.hear(at(5000), theirs, ours) }, false},
		{"a pause after the last word", func(w *witness) { w.hear(at(0), ours, theirs); w.hear(at(5000), ours, theirs) }, false},
		{"no answer", func(w *witness) {
			for i := range 8 {
				w.hear(at(67*i), ours, theirs)
			}
		}, true},
	} {
		w := &witness{}
		w.begin()
		c.do(w)
		if got := w.excuse(true); (got != "") != c.want {
			t.Errorf("%s: excuse %q, want one: %v", c.name, got, c.want)
		}
		if got := w.excuse(false); got != "" && len(w.torn) > 0 {
			t.Errorf("%s on a good cable: excuse %q, want none", c.name, got)
		}
	}
}
