package tunnel

import (
	"fmt"
	"net"
	"net/netip"
	"os"
)

// In a live upgrade the next daemon inherits the sockets and the private key. It makes new sessions: Begin starts a
// handshake with every peer. Packets of the old sessions are lost, and RoCE repeats them.
//
// No nonce is ever used twice. WireGuard's nonce is a counter of the session's key, and every handshake makes a key from
// new random ephemeral keys of both hosts. The old daemon keeps its sessions, with keys and counters, in its memory: they
// are not handed over. So no other process can continue a counter, and no counter returns to an earlier value when a
// handover fails. If the old daemon continues, it continues with unchanged sessions.
//
// Replays are rejected as before. A packet of an old session names an index that the new tunnel does not know. A
// recorded handshake is answered once more, as after a restart. But its sender lacks the ephemeral key and cannot confirm
// the session. So nothing is sent in that session, and the peer's next handshake replaces it.

// Sockets returns the socket of each address, for the Inherited of the next daemon.
func (t *Tunnel) Sockets() map[netip.Addr][]int {
	if t.sockets == nil {
		return nil
	}
	return t.sockets()
}

// Begin starts a silent tunnel. It does not wait for the handshakes.
func (t *Tunnel) Begin() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.silent {
		return nil
	}
	t.silent = false
	if err := t.device.Up(); err != nil {
		return fmt.Errorf("tunnel: %w", err)
	}
	t.helpers.Go(func() { // a handshake takes some computation
		for _, p := range t.peers.Load().inside {
			if p.wireguard != nil {
				p.wireguard.SendKeepalive()
			}
		}
	})
	return nil
}

// descriptors returns the descriptors of the sockets by address.
func (u *udp) descriptors() map[netip.Addr][]int {
	out := make(map[netip.Addr][]int)
	for _, c := range u.conns {
		raw, err := c.conn.SyscallConn()
		if err != nil {
			continue // it is closed
		}
		raw.Control(func(fd uintptr) { out[c.addr] = []int{int(fd)} })
	}
	return out
}

// inherit makes a socket of a descriptor that another daemon has left, and closes the descriptor.
func inherit(fd int) (net.PacketConn, error) {
	f := os.NewFile(uintptr(fd), "tunnel")
	defer f.Close()
	return net.FilePacketConn(f)
}
