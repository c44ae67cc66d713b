package tunnel

import (
	"encoding/binary"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/tun"

	"vrdma.dev/vrdma/internal/net/overlay"
)

const (
	// readBatch is the number of packets that WireGuard gets at once. One goroutine encrypts each batch: small
	// batches keep all processors busy, large ones need fewer calls.
	readBatch = 32
	// mergeMost is the maximum number of bytes that the loop gets as one message.
	mergeMost = 65507
)

// inside is the unencrypted end of the tunnel. It implements tun.Device, so WireGuard sees a network interface.
type inside struct{ *Tunnel }

var _ tun.Device = inside{}

// Read implements tun.Device: it waits for packets from the loop.
func (t inside) Read(bufs [][]byte, sizes []int, offset int) (int, error) {
	bufs = bufs[:min(len(bufs), readBatch)]
	n := 0
	for n < len(bufs) {
		s := t.out.next()
		if s == nil {
			if n > 0 {
				break
			}
			if !t.awaitWork() {
				return 0, os.ErrClosed
			}
			continue
		}
		k, done := t.fill(s, bufs[n:], sizes[n:], offset)
		n += k
		if done {
			t.cut = 0
			t.out.done(s)
		} else if k == 0 {
			// The peer has reached its limit, or the map that contains it is not in effect yet.
			if n > 0 {
				break
			}
			if !t.awaitRoom(t.peers.Load().inside[s.to.Addr()]) {
				return 0, os.ErrClosed
			}
		}
	}
	return n, nil
}

// fill converts the remaining datagrams in s to packets. It reports whether none is left.
func (t inside) fill(s *slot, bufs [][]byte, sizes []int, offset int) (n int, done bool) {
	p := t.peers.Load().inside[s.to.Addr()]
	if p == nil && t.pending.Load() {
		return 0, false // it may be a new host of the next map
	}
	if p == nil {
		t.count.noPeer.Add(datagrams(s, t.cut))
		return 0, true
	}
	from := netip.AddrPortFrom(t.peers.Load().self, overlay.DefaultPort)
	for t.cut < len(s.data) {
		if n == len(bufs) {
			return n, false
		}
		switch p.admit() {
		case later:
			return n, false
		case never:
			t.count.waiting.Add(datagrams(s, t.cut))
			return n, true
		}
		d := s.data[t.cut:min(len(s.data), t.cut+s.segment)]
		b := bufs[n][offset:]
		putHeaders(b, from, s.to, len(d))
		copy(b[headers:], d)
		if p.linux {
			putChecksum(b[:headers+len(d)])
		}
		sizes[n] = headers + len(d)
		t.cut += len(d)
		n++
	}
	return n, true
}

// datagrams returns the number of datagrams in s from an offset on.
func datagrams(s *slot, from int) uint64 {
	return uint64((len(s.data) - from + s.segment - 1) / s.segment)
}

// awaitWork waits until the loop has written a message. It reports whether the tunnel is open.
func (t inside) awaitWork() bool {
	t.readerIdle.Store(true)
	defer t.readerIdle.Store(false)
	if t.out.next() != nil {
		return true
	}
	select {
	case <-t.work:
		return true
	case <-t.closed:
		return false
	}
}

// awaitRoom waits until WireGuard has sent a packet. After the time stuck it gives up on p, so that packets for other peers
// do not wait for it.
func (t inside) awaitRoom(p *peer) bool {
	timer := time.NewTimer(stuck)
	defer timer.Stop()
	select {
	case <-t.room:
		return true
	case <-timer.C:
		if p != nil {
			p.up.Store(false)
		}
		return true
	case <-t.closed:
		return false
	}
}

// Write implements tun.Device: it takes packets that WireGuard has decrypted, all from one peer, whose source addresses it
// has checked. Several goroutines call it, one per peer.
func (t inside) Write(bufs [][]byte, offset int) (int, error) {
	t.inMu.Lock()
	for i := 0; i < len(bufs); {
		i += t.merge(bufs[i:], offset)
	}
	t.inMu.Unlock()
	t.wakeLoop()
	return len(bufs), nil
}

// merge combines the first packets, as long as they have the same length and sender, into one message. It returns the number
// of packets handled. The caller holds inMu.
func (t inside) merge(bufs [][]byte, offset int) int {
	from, to, first, ok := parse(bufs[0][offset:])
	if !ok || len(first) == 0 || to.Addr() != t.peers.Load().self {
		t.count.malformed.Add(1)
		return 1
	}
	n, bytes := 1, len(first)
	for n < len(bufs) {
		f, o, d, ok := parse(bufs[n][offset:])
		if !ok || f != from || o != to || len(d) > len(first) || len(d) == 0 || bytes+len(d) > mergeMost {
			break
		}
		bytes += len(d)
		n++
		if len(d) < len(first) {
			break
		}
	}
	s := t.in.reserve(bytes)
	if s == nil {
		t.count.receiveFull.Add(uint64(n))
		return n
	}
	at := 0
	for _, b := range bufs[:n] {
		_, _, d, _ := parse(b[offset:])
		at += copy(s.data[at:], d)
	}
	s.from, s.to, s.segment = from, to, len(first)
	t.in.commit(s)
	t.count.received.Add(uint64(n))
	return n
}

// wakeLoop makes the descriptor readable, unless it already is.
func (t inside) wakeLoop() {
	if t.told.Swap(true) {
		return
	}
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	_, _ = unix.Write(t.event, one[:])
}

// File, Name, MTU, Events and BatchSize implement tun.Device. The MTU limits only WireGuard's padding.
func (t inside) File() *os.File           { return nil }
func (t inside) Name() (string, error)    { return "vrdma", nil }
func (t inside) MTU() (int, error)        { return 1 << 16, nil }
func (t inside) Events() <-chan tun.Event { return t.events }
func (t inside) BatchSize() int           { return readBatch }

// Close implements tun.Device: WireGuard calls it when it is closed.
func (t inside) Close() error {
	t.closing.Do(func() {
		close(t.closed)
		close(t.events)
	})
	return nil
}
