package tunnel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
)

// receiveBatch is how many datagrams WireGuard takes at once. What it has taken and not decrypted yet
// lies in up to 1024 such batches, a buffer of 64 KiB each datagram: a flood must not make that much.
const receiveBatch = 32

// A socket moves datagrams to and from other hosts.
type socket interface {
	// send sends datagrams to one address. It may be called by several goroutines.
	send(datagrams [][]byte, to netip.AddrPort) error
	// receivers are functions that wait for datagrams, fill in data, lengths and senders and
	// return how many. Each is for one goroutine. They return net.ErrClosed when the socket is
	// closed.
	receivers() []receiver
	close() error
}

type receiver func(bufs [][]byte, sizes []int, from []netip.AddrPort) (int, error)

// outside is the end of the tunnel where packets are encrypted. It implements conn.Bind.
type outside struct {
	*Tunnel
	socket socket
	opened bool
}

var _ conn.Bind = (*outside)(nil)

// An endpoint is where a peer is. It implements conn.Endpoint.
type endpoint struct{ at netip.AddrPort }

func (e *endpoint) ClearSrc()           {}
func (e *endpoint) SrcToString() string { return "" }
func (e *endpoint) SrcIP() netip.Addr   { return netip.Addr{} }
func (e *endpoint) DstToString() string { return e.at.String() }
func (e *endpoint) DstIP() netip.Addr   { return e.at.Addr() }
func (e *endpoint) DstToBytes() []byte  { b, _ := e.at.MarshalBinary(); return b }

// ParseEndpoint implements conn.Bind.
func (t *outside) ParseEndpoint(s string) (conn.Endpoint, error) {
	a, err := netip.ParseAddrPort(s)
	return &endpoint{at: a}, err
}

// Open implements conn.Bind. The socket is open: which port it has was decided before.
func (t *outside) Open(uint16) (receive []conn.ReceiveFunc, port uint16, err error) {
	t.opened = true
	for _, r := range t.socket.receivers() {
		from := make([]netip.AddrPort, receiveBatch)
		receive = append(receive, func(bufs [][]byte, sizes []int, eps []conn.Endpoint) (int, error) {
			n, err := r(bufs, sizes, from[:len(bufs)])
			for i := range n {
				t.recognise(&sizes[i], from[i], &eps[i])
			}
			return n, err
		})
	}
	return receive, t.port, nil
}

// recognise finds the peer that a datagram is from. Those from nowhere known are dropped: WireGuard
// need not compute anything for them.
func (t *outside) recognise(size *int, from netip.AddrPort, e *conn.Endpoint) {
	p := t.peers.Load().outside[from.Addr()]
	if p == nil {
		t.count.unknown.Add(1)
		*size = 0
		return
	}
	last := p.last.Load()
	if last == nil || last.at != from {
		last = &endpoint{at: from}
		p.last.Store(last)
	}
	*e = last
}

// Send implements conn.Bind. WireGuard does not retransmit data, so what could not be sent is lost as
// on a wire, and counted.
func (t *outside) Send(bufs [][]byte, e conn.Endpoint) error {
	to := e.(*endpoint).at
	p := t.peers.Load().outside[to.Addr()]
	if p != nil && len(bufs) == 1 && t.hold(p, bufs[0], to) {
		return nil
	}
	err := t.socket.send(bufs, to)
	packets := 0
	for _, b := range bufs {
		if isData(b) {
			packets++
		}
	}
	if p != nil && packets > 0 {
		p.departed(packets)
		signal(t.room)
	}
	switch {
	case err == nil:
		t.count.sent.Add(uint64(packets))
	case errors.Is(err, unix.EMSGSIZE):
		t.count.tooLong.Add(uint64(packets))
		if p != nil {
			t.limit(p, bufs)
		}
	case errors.Is(err, net.ErrClosed):
		return err
	default:
		t.count.sendErrors.Add(uint64(packets))
	}
	return nil
}

// limit notes that the way to a peer does not take the longest of these datagrams, so that the loop
// learns of it when it sends the next one.
func (t *outside) limit(p *peer, bufs [][]byte) {
	longest := 0
	for _, b := range bufs {
		longest = max(longest, len(b))
	}
	room := int64(max(0, longest-sealed-headers-padding))
	if old := p.room.Swap(room); old > room {
		t.log.Warn("the way to a host does not take packets that long: give the interfaces on it a larger MTU, or the encrypted network a smaller one",
			"host", p.host, "address", p.at, "datagram", longest)
	}
}

// hold decides whether a datagram has to wait. Two hosts learn of each other at the same time. If both
// begin a handshake, each takes the other's beginning for the newer one and forgets its own, none ends,
// and both try again after five seconds. So the one with the larger key waits a little, and forgets its
// initiation if the other's has come meanwhile: WireGuard answers that only when it is genuine.
func (t *outside) hold(p *peer, b []byte, to netip.AddrPort) bool {
	switch binary.LittleEndian.Uint32(b) {
	case device.MessageResponseType:
		p.held.Store(nil)
	case device.MessageInitiationType:
		ours := t.peers.Load().key
		if bytes.Compare(ours[:], p.key[:]) < 0 {
			return false
		}
		held := bytes.Clone(b)
		p.held.Store(&held)
		time.AfterFunc(precedence, func() {
			if p.held.CompareAndSwap(&held, nil) {
				_ = t.socket.send([][]byte{held}, to) // it is tried again
			}
		})
		return true
	}
	return false
}

// isData reports whether a datagram of WireGuard's carries a packet: it is no part of a handshake, and
// not empty.
func isData(b []byte) bool {
	return len(b) > device.MessageKeepaliveSize && binary.LittleEndian.Uint32(b) == device.MessageTransportType
}

// SetMark and BatchSize implement conn.Bind.
func (t *outside) SetMark(uint32) error { return nil }
func (t *outside) BatchSize() int       { return receiveBatch }

// Close implements conn.Bind. WireGuard calls it before Open, too.
func (t *outside) Close() error {
	if !t.opened {
		return nil
	}
	return t.socket.close()
}
