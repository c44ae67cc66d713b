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

// receiveBatch is the number of datagrams that WireGuard takes at once. It queues up to 1024 undecrypted batches, with a
// buffer of 64 KiB per datagram, so a larger batch would let a flood use too much memory.
const receiveBatch = 32

// A socket sends datagrams to other hosts and receives them.
type socket interface {
	// send sends datagrams to one address. It may be called by several goroutines.
	send(datagrams [][]byte, to netip.AddrPort) error
	// receivers returns functions that wait for datagrams, store data, lengths and senders, and return their number.
	// Each is for one goroutine. They return net.ErrClosed when the socket is closed.
	receivers() []receiver
	close() error
}

type receiver func(bufs [][]byte, sizes []int, from []netip.AddrPort) (int, error)

// outside is the encrypted end of the tunnel. It implements conn.Bind.
type outside struct {
	*Tunnel
	socket socket
	opened bool
}

var _ conn.Bind = (*outside)(nil)

// An endpoint is the address of a peer. It implements conn.Endpoint.
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

// Open implements conn.Bind. The socket is open already, and its port cannot change.
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

// recognise finds the peer that sent a datagram. It drops datagrams from unknown addresses, so that WireGuard spends no
// computation on them.
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

// Send implements conn.Bind. WireGuard does not retransmit data, so a packet that cannot be sent is lost and counted.
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

// limit records that the longest of these datagrams is too long for the path to a peer. The loop learns of it when it sends
// the next one.
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

// hold decides whether a datagram must wait. Two hosts learn of each other at the same time. If both start a handshake, each
// treats the other's as newer and discards its own, so neither completes, and both retry after five seconds. So the host with
// the larger key waits a little. It drops its initiation if the other's has arrived meanwhile and is genuine.
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
		time.AfterFunc(t.wait, func() {
			if p.held.CompareAndSwap(&held, nil) {
				_ = t.socket.send([][]byte{held}, to) // WireGuard retries after a failure
			}
		})
		return true
	}
	return false
}

// isData reports whether a WireGuard datagram carries a packet: it is neither part of a handshake nor empty.
func isData(b []byte) bool {
	return len(b) > device.MessageKeepaliveSize && binary.LittleEndian.Uint32(b) == device.MessageTransportType
}

// SetMark and BatchSize implement conn.Bind.
func (t *outside) SetMark(uint32) error { return nil }
func (t *outside) BatchSize() int       { return receiveBatch }

// Close implements conn.Bind. WireGuard also calls it before Open.
func (t *outside) Close() error {
	if !t.opened {
		return nil
	}
	return t.socket.close()
}
