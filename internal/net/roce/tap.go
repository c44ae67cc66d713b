package roce

import (
	"fmt"
	"io"
	"net/netip"
	"sync/atomic"
	"time"

	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/net/pcap"
	"vrdma.dev/vrdma/internal/net/wire"
)

const (
	tapChunk  = 256 << 10 // bytes passed to the writer at once
	tapChunks = 16        // number of chunks
	// tapRecord is the maximum overhead of a record over its packet.
	tapRecord = 16 + wire.IPv6Size + wire.UDPSize
)

// A Tap records packets in libpcap format, as raw IP. The loop that owns the port feeds it, and a separate goroutine
// writes, so that a slow reader does not delay the loop. Packets that the writer is too slow for are dropped from
// the capture and counted.
type Tap struct {
	cut  Cutter
	buf  []byte // one message of a burst that is split only for recording
	head [wire.IPv6Size + wire.UDPSize]byte
	now  func() time.Time

	outer bool // see SetOuter
	only  Selection

	chunk *chunk // the chunk being filled
	pcap  *pcap.Writer
	free  chan *chunk
	full  chan *chunk

	count  atomic.Uint64 // recorded packets
	left   atomic.Uint64
	failed atomic.Bool
	done   chan struct{}
	err    error // the writer's error; valid when done is closed
}

// chunk is a part of the file.
type chunk struct{ data []byte }

// A Selection is the part of the packets that a Tap records.
type Selection struct {
	// Peers and NICs are addresses: a packet is from or to one of each. Empty: any.
	Peers, NICs map[netip.Addr]bool
	// Snap is how many bytes of a packet are recorded; 0: all.
	Snap int
}

// has reports whether packets between these addresses are recorded.
func (s *Selection) has(a, b netip.Addr) bool {
	return (len(s.Peers) == 0 || s.Peers[a] || s.Peers[b]) && (len(s.NICs) == 0 || s.NICs[a] || s.NICs[b])
}

// hasPacket is has for an IP packet.
func (s *Selection) hasPacket(p []byte) bool {
	if len(s.Peers)+len(s.NICs) == 0 {
		return true
	}
	switch {
	case len(p) >= wire.IPv4Size && p[0]>>4 == 4:
		return s.has(netip.AddrFrom4([4]byte(p[12:16])), netip.AddrFrom4([4]byte(p[16:20])))
	case len(p) >= wire.IPv6Size && p[0]>>4 == 6:
		return s.has(netip.AddrFrom16([16]byte(p[8:24])), netip.AddrFrom16([16]byte(p[24:40])))
	}
	return false
}

// Select restricts what is recorded. It is called before the loop uses t.
func (t *Tap) Select(s Selection) { t.only = s }

// NewTap writes the file header to w and starts recording.
func NewTap(w io.Writer) (*Tap, error) {
	t := &Tap{
		buf: make([]byte, MaxMessage), now: time.Now,
		free: make(chan *chunk, tapChunks), full: make(chan *chunk, tapChunks), done: make(chan struct{}),
	}
	for range tapChunks {
		t.free <- &chunk{make([]byte, 0, tapChunk)}
	}
	t.chunk = <-t.free
	var err error
	if t.pcap, err = pcap.NewWriter(t, pcap.RawIP); err != nil {
		return nil, err
	}
	go t.write(w)
	t.push()
	return t, nil
}

// Write implements io.Writer for the pcap writer: it appends to the current chunk, which has space.
func (t *Tap) Write(b []byte) (int, error) {
	t.chunk.data = append(t.chunk.data, b...)
	return len(b), nil
}

// write writes chunks to the file.
func (t *Tap) write(w io.Writer) {
	defer close(t.done)
	for c := range t.full {
		if t.err == nil {
			if _, t.err = w.Write(c.data); t.err != nil {
				t.err = fmt.Errorf("write the capture: %w", t.err)
				t.failed.Store(true)
			}
		}
		c.data = c.data[:0]
		t.free <- c
	}
}

// push passes the current chunk to the writer, if there is a free chunk to continue with.
func (t *Tap) push() bool {
	if len(t.chunk.data) == 0 {
		return true
	}
	select {
	case c := <-t.free:
		t.full <- t.chunk // never blocks: the channel holds all chunks
		t.chunk = c
		return true
	default:
		return false
	}
}

// Burst records a burst that never becomes packets, because sender and receiver are on this host.
func (t *Tap) Burst(b *transport.Burst) {
	src, dst := b.SGID.Addr(), b.DGID.Addr()
	if !t.only.has(src, dst) {
		return
	}
	m := Message{
		Local:  netip.AddrPortFrom(src, firstPort+uint16(spread(b.Src)%numPorts)),
		Remote: netip.AddrPortFrom(dst, wire.Port),
	}
	if src.Is4() != dst.Is4() || t.cut.Start(b, m.Local, m.Remote) != nil {
		t.left.Add(uint64(b.Packets))
		return
	}
	for {
		n, segment, err := t.cut.Next(t.buf, MaxSegments)
		if n == 0 || err != nil {
			return
		}
		m.Data, m.Segment = t.buf[:n], segment
		t.message(&m, 0)
	}
}

// notePort is the UDP port of notes: that of syslog, so that Wireshark shows their text.
const notePort = 514

// Note records a remark about the next packet, as a syslog message between the same addresses.
func (t *Tap) Note(src, dst netip.Addr, text string) {
	if src.Is4() != dst.Is4() {
		return
	}
	t.record(t.now(), netip.AddrPortFrom(src, notePort), netip.AddrPortFrom(dst, notePort), []byte("<134>vrdma: "+text), 0, 0)
}

// message records the packets of a sent message; the first has this identification.
func (t *Tap) message(m *Message, id uint16) {
	segment := m.Segment
	if segment <= 0 {
		segment = len(m.Data)
	}
	now := t.now()
	for at := 0; at < len(m.Data); at += segment {
		data := m.Data[at:min(len(m.Data), at+segment)]
		if m.Inside {
			t.inside(now, m.Local, m.Remote, data, ect)
		} else if t.only.has(m.Local.Addr(), m.Remote.Addr()) {
			t.record(now, m.Local, m.Remote, data, id, ect)
		}
		id++
	}
}

// SetOuter makes the tap record the VXLAN datagrams of virtual networks instead of the inner packets that the
// networks' members see. It is called before the loop uses t.
func (t *Tap) SetOuter(outer bool) { t.outer = outer }

// inside records a VXLAN datagram, or the packet in it.
func (t *Tap) inside(now time.Time, src, dst netip.AddrPort, data []byte, ecn uint8) {
	packet, ok := overlay.Inside(data)
	switch {
	case ok && !t.only.hasPacket(packet):
	case t.outer && src.Addr().Is4() == dst.Addr().Is4():
		t.record(now, src, dst, data, 0, ecn)
	case ok:
		t.append(now, nil, packet)
	}
}

// datagram records a received packet of m.
func (t *Tap) datagram(m *Message, data []byte, id uint16) {
	if !t.only.has(m.Remote.Addr(), m.Local.Addr()) {
		return
	}
	ecn := uint8(ect)
	if m.CE {
		ecn = ce
	}
	t.record(t.now(), m.Remote, m.Local, data, id, ecn)
}

// ECN code points: ECN-capable, and Congestion Experienced.
const (
	ect = 2
	ce  = 3
)

// record appends one packet.
func (t *Tap) record(now time.Time, src, dst netip.AddrPort, data []byte, id uint16, ecn uint8) {
	t.append(now, t.headers(src, dst, len(data), id, ecn), data)
}

// append appends a packet: its headers and its data.
func (t *Tap) append(now time.Time, h, data []byte) {
	if t.failed.Load() || cap(t.chunk.data)-len(t.chunk.data) < len(data)+tapRecord && !t.push() {
		t.left.Add(1)
		return
	}
	length := len(h) + len(data)
	if snap := t.only.Snap; snap > 0 {
		h = h[:min(len(h), snap)]
		data = data[:min(len(data), snap-len(h))]
	}
	t.count.Add(1)
	// The chunk has space: neither write can fail.
	_ = t.pcap.WriteShort(now, len(h)+len(data), length)
	_, _ = t.Write(h)
	_, _ = t.Write(data)
	if len(t.full) == 0 {
		t.push() // the writer is idle
	}
}

// headers returns the IP and UDP headers of a packet. Like rxe's, it has no UDP checksum.
func (t *Tap) headers(src, dst netip.AddrPort, n int, id uint16, ecn uint8) []byte {
	var b []byte
	if src.Addr().Is4() {
		b = t.head[:wire.IPv4Size+wire.UDPSize]
		h := wire.IPv4(b)
		h.Init()
		h.SetTOS(ecn)
		h.SetTotalLength(len(b) + n)
		h.SetID(id)
		h.SetFragment(wire.DontFragment)
		h.SetTTL(wire.DefaultTTL)
		h.SetSrc(src.Addr().As4())
		h.SetDst(dst.Addr().As4())
		h.SetChecksum(h.Sum())
	} else {
		b = t.head[:]
		h := wire.IPv6(b)
		h.Init()
		h.SetTrafficClass(ecn)
		h.SetPayloadLength(wire.UDPSize + n)
		h.SetHopLimit(wire.DefaultTTL)
		h.SetSrc(src.Addr().As16())
		h.SetDst(dst.Addr().As16())
	}
	u := wire.UDP(b[len(b)-wire.UDPSize:])
	u.SetSrcPort(src.Port())
	u.SetDstPort(dst.Port())
	u.SetLength(wire.UDPSize + n)
	u.SetChecksum(0)
	return b
}

// Flush passes recorded packets to the writer.
func (t *Tap) Flush() { t.push() }

// Recorded returns how many packets were recorded.
func (t *Tap) Recorded() uint64 { return t.count.Load() }

// LeftOut returns how many packets were not recorded because the writer was too slow or failed.
func (t *Tap) LeftOut() uint64 { return t.left.Load() }

// Failed reports whether the writer has stopped with an error; Close returns it.
func (t *Tap) Failed() bool { return t.failed.Load() }

// Close writes the rest and ends the recording. The loop must not use t any more. Close waits for the writer, so the
// loop must not call it.
func (t *Tap) Close() error {
	if len(t.chunk.data) > 0 {
		t.full <- t.chunk
	}
	close(t.full)
	<-t.done
	return t.err
}
