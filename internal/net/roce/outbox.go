package roce

import (
	"errors"
	"net/netip"

	"vrdma.dev/vrdma/internal/device/transport"
)

const (
	// queueRoom is the maximum number of bytes that wait for Flush, and queueMost the maximum number of
	// messages.
	queueRoom = 2 << 20
	queueMost = 4096
)

// An outbox queues packets for the next send call. Port and Overlay share it.
type outbox struct {
	// via is a Bind or a Tunnel.
	via interface {
		Send(msgs []Message) (int, error)
	}
	tap   *Tap
	count Counters
	queue []Message
	room  []byte
	used  int
	// reseal is called for each datagram of a message that must be sent one by one; nil: not needed.
	reseal func(m *Message, data []byte)
	// lost is called for a datagram that was refused.
	lost func(m *Message, err error)
}

func newOutbox(via interface {
	Send(msgs []Message) (int, error)
}) outbox {
	return outbox{via: via, room: make([]byte, queueRoom), queue: make([]Message, 0, queueMost)}
}

// Moved returns the number of bytes sent and received.
func (o *outbox) Moved() uint64 { return o.count.SentBytes + o.count.RcvdBytes }

// SetTap starts recording every packet; nil stops it.
func (o *outbox) SetTap(t *Tap) { o.tap = t }

// makeRoom reports whether the queue has space for a whole message, after a flush if necessary.
func (o *outbox) makeRoom() bool {
	if o.used+MaxMessage <= len(o.room) && len(o.queue) < cap(o.queue) {
		return true
	}
	o.Flush()
	return o.used+MaxMessage <= len(o.room) && len(o.queue) < cap(o.queue)
}

// push queues the n bytes written at the end of the buffer as the data of m, and returns the number of packets.
func (o *outbox) push(m Message, n int) uint32 {
	m.Data = o.room[o.used : o.used+n : o.used+n]
	o.queue = append(o.queue, m)
	o.used += n
	k := packetsIn(&m)
	o.count.SentPackets += uint64(k)
	o.count.SentBytes += uint64(n)
	if o.tap != nil {
		o.tap.message(&m, 0)
	}
	return k
}

// follow makes the cutter continue the message queued last if the next packets may leave in the same call: a
// run of small messages, or an acknowledgement after a request. It returns the offset in room of the message
// that the next packets belong to.
func (o *outbox) follow(cut *Cutter, id int, src, dst netip.AddrPort, limit int) int {
	if len(o.queue) == 0 {
		return o.used
	}
	m := &o.queue[len(o.queue)-1]
	packets := len(m.Data) / m.Segment
	if packets >= limit || m.Source != id || m.Remote != dst || m.Local != src || // another destination
		len(m.Data)%m.Segment != 0 || // its last packet is shorter and must stay the last
		len(m.Data)+m.Segment > MaxMessage || !cut.Follow(packets, m.Segment) {
		return o.used
	}
	return o.used - len(m.Data)
}

// extend adds the n bytes written at the end of the buffer to the message queued last, and returns the number of
// packets.
func (o *outbox) extend(n int) uint32 {
	m := &o.queue[len(o.queue)-1]
	added := Message{Data: o.room[o.used : o.used+n], Segment: m.Segment, Local: m.Local, Remote: m.Remote, Inside: m.Inside}
	first := packetsIn(m)
	start := o.used - len(m.Data)
	o.used += n
	m.Data = o.room[start:o.used:o.used]
	k := packetsIn(&added)
	o.count.SentPackets += uint64(k)
	o.count.SentBytes += uint64(n)
	if o.tap != nil {
		o.tap.message(&added, uint16(first))
	}
	return k
}

// put queues the packets of b as messages like m, each with at most as many segments as a call accepts. A flush
// may change that number.
func (o *outbox) put(cut *Cutter, b *transport.Burst, m Message, segments func() int) error {
	sent := uint32(0)
	for {
		if !o.makeRoom() {
			o.count.SendFull += uint64(b.Packets - sent)
			return nil
		}
		limit := segments()
		start := o.follow(cut, m.Source, m.Local, m.Remote, limit)
		n, segment, err := cut.Next(o.room[o.used:min(len(o.room), start+MaxMessage)], limit)
		if err != nil {
			o.count.Unreadable++
			return err
		}
		switch {
		case n == 0:
			return nil
		case start < o.used:
			sent += o.extend(n)
		default:
			m.Segment = segment
			sent += o.push(m, n)
		}
	}
}

// packetsIn returns the number of datagrams in m.
func packetsIn(m *Message) uint32 {
	if m.Segment <= 0 || m.Segment >= len(m.Data) {
		return 1
	}
	return uint32((len(m.Data) + m.Segment - 1) / m.Segment)
}

// Pending reports whether packets wait for Flush.
func (o *outbox) Pending() bool { return len(o.queue) > 0 }

// Ready reports whether at least half of the queue is free, after a flush if necessary. Packets sent while it is
// not may be dropped.
func (o *outbox) Ready() bool {
	if o.used*2 <= len(o.room) && len(o.queue)*2 <= cap(o.queue) {
		return true
	}
	o.Flush()
	return o.used*2 <= len(o.room) && len(o.queue)*2 <= cap(o.queue)
}

// Flush sends queued messages until the sockets are full.
func (o *outbox) Flush() {
	q := o.queue
	for full := false; len(q) > 0 && !full; {
		n, err := o.via.Send(q)
		o.count.SentCalls += uint64(n)
		q = q[n:]
		switch {
		case len(q) == 0:
		case err == nil || errors.Is(err, ErrFull):
			full = true
		case packetsIn(&q[0]) > 1 && !errors.Is(err, ErrNoTunnel):
			// The device does not segment, or a packet is too long for the path: that must not affect the
			// other packets.
			if full = !o.split(&q[0]); !full {
				q = q[1:]
			}
		default:
			o.refused(&q[0], err)
			q = q[1:]
		}
	}
	if len(q) == 0 {
		o.queue, o.used = o.queue[:0], 0
		return
	}
	o.queue = append(o.queue[:0], q...)
}

// split sends the datagrams of m, which was refused as a whole, one by one. It reports whether all have been
// handled; otherwise the socket is full, and m contains the rest.
func (o *outbox) split(m *Message) bool {
	one := [1]Message{*m}
	for len(m.Data) > 0 {
		n := min(m.Segment, len(m.Data))
		if o.reseal != nil {
			o.reseal(m, m.Data[:n])
		}
		one[0].Data, one[0].Segment = m.Data[:n], 0
		switch _, err := o.via.Send(one[:]); {
		case errors.Is(err, ErrFull):
			return false
		case err != nil:
			o.refused(&one[0], err)
		default:
			o.count.SentCalls++
		}
		m.Data = m.Data[n:]
	}
	return true
}

// refused counts a message that is not sent.
func (o *outbox) refused(m *Message, err error) {
	o.count.SendErrors += uint64(packetsIn(m))
	if o.lost != nil {
		o.lost(m, err)
	}
}
