package replay

import (
	"bytes"
	"net/netip"
	"os"
	"sort"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/net/wire"
	"vrdma.dev/vrdma/internal/testkit/golden"
)

// packet is one packet of a capture.
type packet struct {
	at       time.Time
	src, dst netip.AddrPort
	id       uint16
	wire.Packet
	bad  bool // damaged in transit: the receiver did not see it
	lost bool // dropped in transit
	copy bool // a duplicate made in transit
}

func (p *packet) psn() uint32               { return p.BTH().PSN() }
func (p *packet) format() *wire.Format      { return p.Format() }
func (p *packet) operation() wire.Operation { return p.Format().Operation }
func (p *packet) is(o ...wire.Operation) bool {
	for _, o := range o {
		if p.operation() == o {
			return true
		}
	}
	return false
}

// response reports whether p answers a request.
func (p *packet) response() bool { return p.is(wire.Ack, wire.AtomicAck, wire.ReadResponse) }

// end is one queue pair of a capture.
type end struct {
	addr netip.Addr
	qp   uint32
}

// to returns the queue pair that p is sent to.
func (p *packet) to() end { return end{p.dst.Addr(), p.BTH().DestQP()} }

// read reads a capture and the packets that were dropped from it.
func read(t *testing.T, file string) []packet {
	t.Helper()
	all := readFile(t, file)
	dropped := strings.TrimSuffix(file, ".pcap") + ".dropped.pcap"
	if _, err := os.Stat(dropped); err == nil {
		for _, p := range readFile(t, dropped) {
			p.lost = true
			all = append(all, p)
		}
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].at.Before(all[j].at) })
	for i := range all {
		for j := range all[:i] {
			// rxe gives every packet its own identification.
			p, o := &all[i], &all[j]
			if p.id != 0 && p.id == o.id && p.src == o.src && bytes.Equal(p.Bytes(), o.Bytes()) {
				p.copy = true
			}
		}
	}
	return all
}

func readFile(t *testing.T, file string) (all []packet) {
	t.Helper()
	for _, c := range golden.Read(t, file) {
		p := packet{at: c.At, src: c.Src, dst: c.Dst, id: c.ID}
		var err error
		if p.Packet, err = wire.Parse(c.Data); err != nil {
			t.Fatalf("%s, packet %d: %v", file, c.Number, err)
		}
		var flow wire.Flow
		flow.Set(p.src, p.dst)
		if id, ok := flow.Check(p.Packet, p.id); !ok || flow.IsIPv4() && id != p.id {
			p.bad = true
		}
		all = append(all, p)
	}
	return all
}

// A conversation is the packets between two connected queue pairs, or those that one datagram queue pair sent.
type conversation struct {
	service wire.Service
	x, y    end
	packets []packet
}

// from reports whether c's queue pair x sent p.
func (c *conversation) from(p *packet) bool {
	if c.service == wire.UD {
		return p.src.Addr() == c.x.addr && p.DETH().SrcQP() == c.x.qp
	}
	return p.src.Addr() == c.x.addr && p.to() == c.y
}

// conversations splits a capture into conversations, each once from the view of either side.
func conversations(all []packet) []*conversation {
	peers := peersOf(all)
	var list []*conversation
	find := map[end]*conversation{}
	add := func(s wire.Service, x, y end, p *packet) {
		c := find[x]
		if c == nil {
			c = &conversation{service: s, x: x, y: y}
			find[x] = c
			list = append(list, c)
		}
		c.packets = append(c.packets, *p)
	}
	for i := range all {
		p := &all[i]
		switch s := p.format().Service; s {
		case wire.UD:
			add(s, end{p.src.Addr(), p.DETH().SrcQP()}, end{}, p)
			add(s, p.to(), end{}, p)
		case wire.RC, wire.UC:
			y := p.to()
			if x, ok := peers[y]; ok {
				add(s, x, y, p)
				add(s, y, x, p)
			}
		}
	}
	return list
}

// peersOf finds the connected queue pairs: a packet names its receiver only. An answer has the PSN of its request. Every capture has
// at most one pair of UC queue pairs.
func peersOf(all []packet) map[end]end {
	peers := map[end]end{}
	uc := map[end]bool{}
	for i := range all {
		p := &all[i]
		if p.format().Service == wire.UC {
			for other := range uc {
				if other.addr != p.dst.Addr() {
					peers[p.to()], peers[other] = other, p.to()
				}
			}
			uc[p.to()] = true
		}
		if p.format().Service != wire.RC || !p.response() {
			continue
		}
		for j := i - 1; j >= 0; j-- {
			r := &all[j]
			if r.format().Service == wire.RC && !r.response() && r.src.Addr() == p.dst.Addr() && r.psn() == p.psn() {
				peers[r.to()], peers[p.to()] = p.to(), r.to()
				break
			}
		}
	}
	return peers
}
