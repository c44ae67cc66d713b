package tunnel

import (
	"fmt"
	"net"
	"net/netip"
	"os"
)

// A daemon that takes over from another one has its sockets and its private key, and makes new sessions: Begin starts a
// handshake with every peer. Packets under the sessions before are lost, and RoCE repeats them.
//
// No nonce is ever used twice. WireGuard's nonce is a counter of the session's key, and every handshake makes a key from
// new random ephemeral keys of both hosts. The sessions of the daemon before, with their keys and counters, are in its
// memory only: they are not handed over, so no other process can continue a counter, and none can fall back to an
// earlier value when a handover fails. If the old daemon continues instead, its sessions have not been touched.
//
// Replays are rejected as before. A packet of an old session names an index that the new tunnel does not know. A
// handshake that was recorded before is answered once more, as after a restart, but its sender cannot confirm the session
// without the ephemeral key, so nothing is sent under it, and the peer's next handshake replaces it.

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
