package tunnel

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"golang.zx2c4.com/wireguard/device"

	"vrdma.dev/vrdma/internal/net/overlay"
)

const (
	// underWayMost is the maximum number of a peer's packets in WireGuard. Each needs a buffer of 64 KiB.
	underWayMost = 512
	// waitingMost is the same limit while there is no session with the peer: enough for the first messages of a
	// connection to wait for the handshake.
	waitingMost = 64
	// stuck is how long packets for other peers wait for a peer that has reached underWayMost.
	stuck = 20 * time.Millisecond
	// patience is how long packets wait for a session before they are dropped.
	patience = 3 * time.Second
	// precedence is how long the host with the larger key delays its handshake initiation.
	precedence = 100 * time.Millisecond
	// shortPrecedence is the same for a tunnel that continues another daemon's. Connections wait for it, and the peer
	// rarely starts a handshake at that moment.
	shortPrecedence = 20 * time.Millisecond
)

// A peer is the host at the other end of a tunnel.
//
//	         a packet was sent
//	waiting ───────────────────▶ up      waiting: packets above waitingMost are dropped
//	   ▲                         │       up:      those above underWayMost wait
//	   └─────────────────────────┘
//	     none was sent for a while
type peer struct {
	host  string
	key   [32]byte
	addr  netip.Addr     // inner address
	at    netip.AddrPort // outer address
	linux bool
	// wireguard is the peer object of WireGuard; nil if WireGuard refused it.
	wireguard *device.Peer

	up       atomic.Bool
	underWay atomic.Int64 // packets given to WireGuard and not yet sent
	sent     atomic.Uint64
	room     atomic.Int64 // length of the longest datagram that fits the path, as far as known

	last atomic.Pointer[endpoint] // source of the last datagram
	held atomic.Pointer[[]byte]   // a delayed initiation, see outside.hold

	// State of tick.
	seen  uint64
	since time.Time
}

func newPeer(h *overlay.Host, at netip.AddrPort) *peer {
	p := &peer{host: h.Name, key: h.Key, addr: overlay.TunnelAddr(h.Key), at: at, linux: h.Linux}
	p.room.Store(maxDatagram)
	return p
}

type verdict int

const (
	now verdict = iota
	later
	never
)

// admit decides whether WireGuard gets another packet for the peer.
func (p *peer) admit() verdict {
	up := p.up.Load()
	most := int64(waitingMost)
	if up {
		most = underWayMost
	}
	switch {
	case p.underWay.Load() < most:
		p.underWay.Add(1)
		return now
	case up:
		return later
	}
	return never
}

// departed counts n packets of the peer that have been sent.
func (p *peer) departed(n int) {
	p.sent.Add(uint64(n))
	p.up.Store(true)
	if p.underWay.Add(-int64(n)) < 0 {
		p.underWay.Store(0) // some were dropped before
	}
}

// peers is an immutable set of all peers.
type peers struct {
	self    netip.Addr // this host's inner address
	key     [32]byte   // this host's public key
	inside  map[netip.Addr]*peer
	outside map[netip.Addr]*peer
}

// follow sets the peers to those of the map: the hosts that share an encrypted network with this one. The caller holds mu.
func (t *Tunnel) follow(m *overlay.Map) error {
	old := t.peers.Load()
	key := t.key.Public()
	next := &peers{self: overlay.TunnelAddr(key), key: key, inside: map[netip.Addr]*peer{}, outside: map[netip.Addr]*peer{}}
	var fresh []*peer
	var config strings.Builder
	for _, h := range m.Encrypted() {
		a := t.reach(h)
		if !a.IsValid() || h.Key == key {
			t.log.Warn("no tunnel to a host: it has no address of a family that this one has, or this one's key", "host", h.Name)
			continue
		}
		p := old.inside[overlay.TunnelAddr(h.Key)]
		switch {
		case p == nil || p.linux != h.Linux:
			p = newPeer(h, a)
			fresh = append(fresh, p)
			fmt.Fprintf(&config, "public_key=%s\nendpoint=%v\nreplace_allowed_ips=true\nallowed_ip=%v/128\n", hex.EncodeToString(p.key[:]), p.at, p.addr)
		case p.at != a:
			p = newPeer(h, a)
			fresh = append(fresh, p)
			fmt.Fprintf(&config, "public_key=%s\nendpoint=%v\n", hex.EncodeToString(p.key[:]), p.at)
		}
		next.inside[p.addr] = p
		for _, a := range h.Addrs {
			next.outside[a.Unmap().WithZone("")] = p
		}
	}
	var gone strings.Builder
	for a, p := range old.inside {
		if next.inside[a] == nil {
			fmt.Fprintf(&gone, "public_key=%s\nremove=true\n", hex.EncodeToString(p.key[:]))
		}
	}
	// Remove old peers first.
	err := t.device.IpcSet(gone.String() + config.String())
	for _, p := range fresh {
		p.wireguard = t.device.LookupPeer(device.NoisePublicKey(p.key))
	}
	t.peers.Store(next)
	for _, p := range fresh {
		// Start the handshake now, so that later packets need not wait for it. After a restart it also tells the peer to
		// stop using the old session, whose packets this host cannot decrypt.
		if p.wireguard != nil {
			p.wireguard.SendKeepalive()
		}
	}
	return err
}

// reach returns the address and port at which a host receives WireGuard.
func (t *Tunnel) reach(h *overlay.Host) netip.AddrPort {
	port := h.TunnelPort
	if port == 0 {
		port = overlay.DefaultTunnelPort
	}
	for _, a := range h.Addrs {
		if a = a.Unmap(); t.families[a.Is6()] {
			return netip.AddrPortFrom(a, port)
		}
	}
	return netip.AddrPort{}
}

// maintain applies new maps and drops packets that have waited too long for a session, until the tunnel is closed.
func (t *Tunnel) maintain() {
	tick := time.NewTicker(patience / 3)
	defer tick.Stop()
	for {
		select {
		case <-t.news:
			t.catchUp()
		case now := <-tick.C:
			for _, p := range t.peers.Load().inside {
				t.tick(p, now)
			}
		case <-t.closed:
			return
		}
	}
}

// catchUp applies the latest map.
func (t *Tunnel) catchUp() {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.wanted.Load()
	if err := t.follow(m); err != nil {
		t.log.Error("the tunnels do not follow the hosts", "err", err)
	}
	t.pending.Store(false)
	if t.wanted.Load() != m {
		t.pending.Store(true)
	}
	signal(t.room)
}

// tick drops packets for a peer to which nothing has been sent for some time.
func (t *Tunnel) tick(p *peer, now time.Time) {
	sent, waits := p.sent.Load(), p.underWay.Load()
	if sent != p.seen || waits == 0 {
		p.seen, p.since = sent, now
		return
	}
	if now.Sub(p.since) < patience {
		return
	}
	p.up.Store(false)
	if p.wireguard != nil {
		p.wireguard.FlushStagedPackets()
	}
	p.underWay.Store(0)
	p.since = now
	t.count.waiting.Add(uint64(waits))
}
