package provision

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/registry"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/roce"
	"vrdma.dev/vrdma/internal/net/routes"
)

// The default NIC has the addresses of the host. They change while programs have it open: DHCP answers, a cable is
// plugged in, an engine makes a bridge. The NIC follows by the rules of readdress.go.

// HostNIC describes the default NIC to FollowHost.
type HostNIC struct {
	NIC *registry.NIC
	// Serves says that other hosts reach the NIC: every address has sockets. UDP has those that the engine has already; nil: none.
	Serves bool
	UDP    *roce.UDP
	// Changed is called after the NIC has other addresses at which other hosts reach it; nil: nothing is.
	Changed func([]netip.Addr)
}

// A hostFollower keeps the addresses of the default NIC those of the host. One goroutine uses it.
type hostFollower struct {
	HostNIC
	host   *host
	served *atomic.Pointer[[]netip.Addr] // the addresses that other hosts reach
	there  *routes.Elsewhere
	watch  *routes.Watch
	rows   []row
	stale  bool   // the engine does not have everything that rows says
	warned string // the last logged error
}

// FollowHost gives the default NIC the host's addresses whenever these change, until stop is called.
func (r *Provisioner) FollowHost(p HostNIC) (stop func(), err error) {
	open := func() (int, error) {
		return unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	}
	fd, err := open()
	if err != nil {
		return nil, err
	}
	f := &hostFollower{HostNIC: p, host: r.host, served: &r.hostAddresses}
	if f.watch, err = routes.NewWatch(fd); err != nil { // before the first look, so that no change is missed
		return nil, err
	}
	f.there = routes.NewElsewhere(-1, -1, -1, open)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer f.there.Close()
		f.follow()
	}()
	return func() {
		f.watch.Close()
		<-ended
	}, nil
}

// follow looks at once, because addresses may have changed since the daemon read them, and then after every change. It
// retries what fails, with growing pauses.
func (f *hostFollower) follow() {
	again := time.Nanosecond
	stale := false
	for n := 0; ; n++ {
		start, pause := time.Now(), settle
		if f.watch.Wait(again) != nil {
			return
		}
		if time.Since(start) >= quiet {
			n = 0
		}
		if n >= settleMost {
			pause = settleLong
		}
		if n > 0 && f.watch.Pause(pause) != nil {
			return
		}
		changed, err := f.look()
		if changed || stale {
			rerr := f.NIC.Tree.Renew()
			stale, err = rerr != nil, errors.Join(err, rerr)
		}
		if err == nil {
			again, f.warned = 0, ""
			continue
		}
		if text := err.Error(); text != f.warned {
			f.warned = text
			f.host.cfg.Log.Warn("the default NIC does not follow all addresses of this host; this is tried again", "why", err)
		}
		again = min(max(2*again, settleLong), quiet)
	}
}

// look sets the NIC's addresses to those that the host has now, and reports whether they have changed. With an error
// some of them may have been set.
func (f *hostFollower) look() (changed bool, err error) {
	all, err := f.there.Addresses()
	if err != nil {
		return false, fmt.Errorf("the addresses of this host are not known: %w", err)
	}
	use := f.without(hostUsable(all))
	if f.rows == nil {
		f.rows = rowsOf(f.NIC.Device.Face(), use)
	}
	was := f.rows
	if !f.stale && slices.Equal(arrange(was, use), was) {
		return false, nil
	}
	fresh, gone := differ(was, use)
	var more *roce.UDP
	var left error
	if f.Serves {
		more, use, left = f.openSockets(fresh, use)
	}
	rows := arrange(was, use)
	if !f.stale && slices.Equal(rows, was) {
		return false, left
	}
	err = f.commit(rows, more, gone)
	return true, errors.Join(left, err)
}

// without leaves out the addresses that declared NICs of the host's network have.
func (f *hostFollower) without(use []routes.Interface) []routes.Interface {
	others := make(map[ib.GID]bool)
	for _, n := range f.host.cfg.NICs.All() {
		if n != f.NIC && n.Network == registry.HostNetwork {
			for _, g := range n.Device.Face().GIDs {
				others[g.GID] = true
			}
		}
	}
	return slices.DeleteFunc(use, func(i routes.Interface) bool { return others[ib.GIDOf(i.Addr)] })
}

// openSockets opens the sockets of new addresses. An address whose sockets cannot be opened is left out, and the error
// says why.
func (f *hostFollower) openSockets(fresh []netip.Addr, use []routes.Interface) (all *roce.UDP, out []routes.Interface, left error) {
	o := f.host.cfg.Sockets
	o.Interface = func(a netip.Addr) int {
		if i := slices.IndexFunc(use, func(i routes.Interface) bool { return i.Addr == a }); i >= 0 {
			return use[i].Index
		}
		return 0
	}
	out = use
	for _, a := range fresh {
		one, err := roce.ListenUDP(o, a)
		switch {
		case err != nil:
			out = slices.DeleteFunc(slices.Clone(out), func(i routes.Interface) bool { return i.Addr == a })
			left = errors.Join(left, fmt.Errorf("%v is left out: %w", a, err))
		case all == nil:
			all = one
		default:
			all.Take(one)
		}
	}
	return all, out, left
}

// commit sets the rows of the NIC and the sockets of the engine, which owns more from then on.
func (f *hostFollower) commit(rows []row, more *roce.UDP, gone []netip.Addr) (err error) {
	face := faceOf(rows, 0)
	if !f.Serves {
		face.MTU = f.NIC.Device.Face().MTU
	}
	var regroup [2]bool
	for i := range regroup {
		regroup[i] = f.stale || !within(f.rows, rows, i) || !within(rows, f.rows, i)
	}
	engine := f.host.cfg.Engine
	perr := f.host.onLoop(func() {
		f.host.cfg.NICs.SetFace(f.NIC, face)
		switch {
		case f.UDP != nil:
			err = engine.Readdress(f.NIC.Device, ib.HostNetwork, regroup, func() []int { return moveSockets(f.UDP, rows, more, gone) })
		case more != nil:
			window, flight := more.Windows()
			if err = engine.AddPort(f.NIC.Device, ib.HostNetwork, roce.NewPort(more), more.Descriptors(), window, flight); err == nil {
				f.UDP = more
			} else {
				more.Close()
			}
		}
	})
	if perr != nil { // the loop has ended
		if more != nil {
			more.Close()
		}
		return perr
	}
	f.rows, f.stale = rows, err != nil
	outward := outwardOf(rows)
	f.served.Store(&outward)
	if len(outward) > 0 {
		f.host.cfg.Log.Info("the default NIC has other addresses", "addresses", outward, "mtu", 128<<face.MTU)
	} else {
		f.host.cfg.Log.Warn(OnlyLoopback)
	}
	if f.Changed != nil {
		f.Changed(outward)
	}
	return err
}

// OnlyLoopback is the log message for a host without another address.
const OnlyLoopback = "this host has only loopback addresses: no other host reaches the default NIC until an interface has an address"

// hostUsable are the addresses of the host that become GIDs. Tools default to 127.0.0.1 and ::1: they are always there.
func hostUsable(all []routes.Interface) []routes.Interface {
	out := slices.DeleteFunc(slices.Clone(all), func(i routes.Interface) bool { return i.Addr.IsLoopback() })
	for _, text := range []string{"127.0.0.1", "::1"} {
		out = append(out, routes.Interface{Addr: netip.MustParseAddr(text), Name: "lo", Index: 1, MTU: 1 << 16})
	}
	return usable(out)
}

// rowsOf are the rows of a NIC that the daemon made when it started. use has their interfaces.
func rowsOf(face *nic.Face, use []routes.Interface) []row {
	rows := make([]row, 0, len(face.GIDs))
	for k, g := range face.GIDs {
		r := row{k, routes.Interface{Addr: g.GID.Addr(), Name: g.NetDev}}
		if face.Rows != nil {
			r.number = face.Rows[k]
		}
		if i := slices.IndexFunc(use, func(i routes.Interface) bool { return i.Addr == r.Addr && i.Name == r.Name }); i >= 0 {
			r.Interface = use[i]
		}
		rows = append(rows, r)
	}
	return rows
}
