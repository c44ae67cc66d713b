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
	// underWayMost is how many packets of a peer WireGuard may hold at once. Each of them takes a
	// buffer of 64 KiB.
	underWayMost = 512
	// waitingMost is the same while there is no session with the peer: enough for the first messages
	// of a connection to wait for the handshake.
	waitingMost = 64
	// stuck is how long packets for others wait for a peer that has underWayMost.
	stuck = 20 * time.Millisecond
	// patience is how long packets wait for a session; then they are dropped.
	patience = 3 * time.Second
	// precedence is how long the host with the larger key holds its initiation of a handshake back.
	precedence = 100 * time.Millisecond
)

// A peer is another host at the other end of a tunnel.
//
//	         a packet was sent
//	waiting ───────────────────▶ up      waiting: packets above waitingMost are dropped
//	   ▲                         │       up:      those above underWayMost wait
//	   └─────────────────────────┘
//	     none was sent for a while
type peer struct {
	host  string
	key   [32]byte
	addr  netip.Addr     // inside the tunnel
	at    netip.AddrPort // outside
	linux bool
	// wireguard is what it is to WireGuard; nil: it was refused.
	wireguard *device.Peer

	up       atomic.Bool
	underWay atomic.Int64 // packets given to WireGuard and not sent yet
	sent     atomic.Uint64
	room     atomic.Int64 // the longest datagram that the way takes, as far as is known

	last atomic.Pointer[endpoint] // where a datagram came from last
	held atomic.Pointer[[]byte]   // an initiation of ours, see outside.hold

	// What tick has seen.
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

// admit decides whether WireGuard is given another packet for the peer.
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
		p.underWay.Store(0) // some had been given up
	}
}

// peers are all of them at one moment. They are not changed.
type peers struct {
	self    netip.Addr // this host's address inside
	key     [32]byte   // and its public key
	inside  map[netip.Addr]*peer
	outside map[netip.Addr]*peer
}

// follow makes the peers those of the map: the hosts that share an encrypted network with this one. mu
// is held.
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
	// Who is gone is cut off first.
	err := t.device.IpcSet(gone.String() + config.String())
	for _, p := range fresh {
		p.wireguard = t.device.LookupPeer(device.NoisePublicKey(p.key))
	}
	t.peers.Store(next)
	for _, p := range fresh {
		// Nobody has to wait for the handshake later. And a host that was restarted says so:
		// what the others send with keys that it has forgotten would be lost for some time.
		if p.wireguard != nil {
			p.wireguard.SendKeepalive()
		}
	}
	return err
}

// reach returns where a host takes WireGuard.
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

// keepHouse has the peers follow the map and drops what has waited too long for a session, until the
// tunnel is closed.
func (t *Tunnel) keepHouse() {
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

// catchUp has the peers follow the map.
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

// tick drops what waits for a peer that nothing has been sent to for some time.
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
