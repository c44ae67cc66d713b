package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/exit"
	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/net/roce"
	"vrdma.dev/vrdma/internal/net/tunnel"
	"vrdma.dev/vrdma/internal/tenancy/provision"
)

// An underlay is where this host sends and receives the packets of virtual networks.
type underlay struct {
	addrs []netip.Addr // at most one of each family
	port  uint16
	mtu   int // the smallest of their interfaces, or that of Ethernet until there is an address; 0: virtual networks stay on this host
	opts  roce.UDPOptions
}

// setUnderlay sets the underlay: the addresses of --underlay; else the first of each family among those that --addr or the file gives
// the device; else those of the default route; else the machine's first.
func (s *settings) setUnderlay() (err error) {
	s.under, err = s.findUnderlay()
	return err
}

// findUnderlay is the underlay by the machine's addresses now.
func (s *settings) findUnderlay() (u underlay, err error) {
	port := s.OverlayPort
	if port < 1 || port > math.MaxUint16 {
		return u, exit.Usage("--overlay-port %d: a UDP port is from 1 to 65535, VXLAN's is %d", port, overlay.DefaultPort)
	}
	u.port = uint16(port)
	u.opts = roce.UDPOptions{NoGSO: s.NoGSO, NoGRO: s.NoGRO, Port: u.port}
	if !s.Network || s.Ephemeral {
		return u, nil
	}
	all, err := machineAddresses()
	if err != nil {
		return u, exit.Lacks("%w", err)
	}
	named := s.Underlay
	list := named
	if len(list) == 0 {
		list = s.Addr
	}
	from := append(defaultRoute(all), defaultOrder(all)...)
	if len(list) > 0 {
		if from, err = parseAddresses(list, all); err != nil {
			return u, exit.Usage("%w", err)
		}
	}
	for _, a := range from {
		if a.ip.IsLoopback() && len(named) == 0 {
			continue
		}
		if len(u.addrs) > 0 && (len(u.addrs) == 2 || u.addrs[0].Is4() == a.ip.Is4()) {
			if len(named) > 0 {
				return u, exit.Usage("--underlay %s: give at most one IPv4 and one IPv6 address", strings.Join(named, ","))
			}
			continue
		}
		u.addrs = append(u.addrs, a.ip)
		u.mtu = min(cmp.Or(u.mtu, math.MaxInt), interfaceMTU(a.netdev))
	}
	if len(u.addrs) == 0 && s.follows() {
		u.mtu = ethernetMTU // DHCP may not have answered yet
	}
	return u, nil
}

// ethernetMTU is the usual MTU of interfaces.
const ethernetMTU = 1500

// defaultRoute are the addresses that this machine uses on its default routes.
func defaultRoute(all []address) (out []address) {
	// Nothing is sent: the kernel only chooses the address.
	for _, to := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} {
		c, err := net.Dial("udp", to)
		if err != nil {
			continue
		}
		at, err := netip.ParseAddrPort(c.LocalAddr().String())
		c.Close()
		for _, a := range all {
			if err == nil && a.ip == at.Addr().Unmap() {
				out = append(out, a)
			}
		}
	}
	return out
}

// head is the number of bytes that the overlay adds to a packet.
func (u *underlay) head() int {
	for _, a := range u.addrs {
		if !a.Is4() {
			return overlay.Outer6
		}
	}
	return overlay.Outer4
}

// between opens the sockets of virtual networks between hosts, when the first network has a member elsewhere. It implements
// provision.Between.
type between struct {
	mu     sync.Mutex // guards under and ports
	under  underlay
	ports  *roce.Ports // from which this host sends; nil: any, see hold
	key    tunnelKey
	log    *slog.Logger
	silent atomic.Bool                   // another daemon has the sockets until begin
	udp    atomic.Pointer[roce.UDP]      // nil: not open
	tunnel atomic.Pointer[tunnel.Tunnel] // nil: not open
}

// at is this host's underlay.
func (b *between) at() underlay {
	b.mu.Lock()
	defer b.mu.Unlock()
	u := b.under
	u.opts.Ports = b.ports
	return u
}

// move sets the underlay, before any socket is open.
func (b *between) move(u underlay) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.under = u
}

// hold takes the ports from which this host will send packets of virtual networks, and returns them. Other hosts learn them before
// the first packet. It returns nil if other programs could send from them. It is called before the sockets are opened. If another daemon
// has left its sockets, they send from its ports, so the ports stay.
func (b *between) hold() []uint16 {
	b.mu.Lock()
	defer b.mu.Unlock()
	first := netip.IPv4Unspecified()
	if len(b.under.addrs) > 0 {
		first = b.under.addrs[0]
	}
	b.ports = inheritPorts(b.under.opts.Inherited, b.under.port)
	if b.ports == nil {
		b.ports = holdPorts(first, b.under.port, b.log)
	}
	return b.ports.Numbers()
}

// holders are the sockets that hold the ports, and at which port this host receives; none: the ports are not held.
func (b *between) holders() (sockets []int, port uint16) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ports.Sockets(), b.under.port
}

// addressTexts are addresses without their order.
func addressTexts(list []netip.Addr) string {
	list = slices.SortedFunc(slices.Values(list), netip.Addr.Compare)
	return fmt.Sprint(list)
}

// OpenOverlay implements provision.Between.
func (b *between) OpenOverlay() (*provision.Overlay, error) {
	u := b.at()
	if len(u.addrs) == 0 {
		return nil, errors.New("this host has no address that others could reach yet; --underlay names one")
	}
	udp, err := roce.ListenUDP(u.opts, u.addrs...)
	if err != nil {
		return nil, err
	}
	b.udp.Store(udp)
	o := &provision.Overlay{Overlay: roce.NewOverlay(roce.OverlayConfig{Bind: udp, Addrs: u.addrs}), Wake: udp.Descriptors()}
	o.Window, o.Flight = udp.Windows()
	mtu, plain := nic.MTUWithin(u.mtu-u.head()), nic.MTUWithin(u.mtu)
	b.log.Info("overlay", "addresses", u.addrs, "port", u.port, "gso", udp.GSO(), "gro", udp.GRO(), "interface_mtu", u.mtu, "mtu", 128<<mtu)
	if mtu < plain {
		b.log.Warn("packets of virtual networks are smaller than those of the host's own network: VXLAN headers take space in the interface's packets",
			"interface_mtu", u.mtu, "mtu", 128<<mtu, "without_overlay", 128<<plain, "do", fmt.Sprintf("raise the interface's MTU by %d on all hosts", u.head()))
	}
	return o, nil
}

// OpenTunnel implements provision.Between.
func (b *between) OpenTunnel() (roce.Tunnel, error) {
	k, err := b.key.load()
	if err != nil {
		return nil, err
	}
	u := b.at()
	t, err := tunnel.Open(tunnel.Options{Key: k, Addrs: u.addrs, Port: b.key.port, Log: b.log, Inherited: u.opts.Inherited, Silent: b.silent.Load()})
	if err != nil {
		return nil, err
	}
	b.tunnel.Store(t)
	public := k.Public()
	b.log.Info("tunnel", "addresses", u.addrs, "port", b.key.port, "public_key", tunnel.FormatPublic(public), "address_inside", overlay.TunnelAddr(public))
	return t, nil
}

// begin starts the tunnel, after the daemon before has ended.
func (b *between) begin() error {
	b.silent.Store(false)
	if t := b.tunnel.Load(); t != nil {
		return t.Begin()
	}
	return nil
}

// setKey gives the open tunnel another private key.
func (b *between) setKey(k tunnel.Key) error {
	if t := b.tunnel.Load(); t != nil && t.Addr() != overlay.TunnelAddr(k.Public()) {
		return t.SetKey(k)
	}
	return nil
}
