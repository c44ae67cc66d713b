package daemon

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// An address is an IP address that becomes a GID of the device, and its interface.
type address struct {
	ip     netip.Addr
	netdev string
}

// machineAddresses are the addresses of this machine's interfaces that are up.
func machineAddresses() ([]address, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("cannot list the network interfaces: %w", err)
	}
	var all []address
	for _, i := range interfaces {
		if i.Flags&net.FlagUp == 0 {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			continue // it went away
		}
		for _, a := range addrs {
			if prefix, ok := a.(*net.IPNet); ok {
				if ip, ok := netip.AddrFromSlice(prefix.IP); ok {
					all = append(all, address{ip.Unmap(), i.Name})
				}
			}
		}
	}
	return all, nil
}

// defaultOrder sorts addresses for the GID table: tools take the first GID that fits. It leaves out link-local addresses, which are
// ambiguous without their interface, and adds both loopback addresses for tools that default to them.
func defaultOrder(all []address) []address {
	var out []address
	for _, a := range all {
		if !a.ip.IsLinkLocalUnicast() && !a.ip.IsLoopback() {
			out = append(out, a)
		}
	}
	out = append(out,
		address{netip.MustParseAddr("127.0.0.1"), "lo"},
		address{netip.MustParseAddr("::1"), "lo"})
	rank := func(a address) int {
		r := 0
		if a.ip.IsLoopback() {
			r += 2
		}
		if a.ip.Is6() {
			r++
		}
		return r
	}
	slices.SortStableFunc(out, func(a, b address) int { return cmp.Compare(rank(a), rank(b)) })
	return slices.CompactFunc(out, func(a, b address) bool { return a.ip == b.ip })
}

// parseAddresses reads --addr, in the given order. An address that no interface has keeps an empty interface.
func parseAddresses(list []string, all []address) ([]address, error) {
	var out []address
	for _, text := range list {
		for item := range strings.SplitSeq(text, ",") {
			ip, err := netip.ParseAddr(strings.TrimSpace(item))
			if err != nil {
				return nil, fmt.Errorf("address %q is not an IP address", item)
			}
			ip = ip.Unmap().WithZone("")
			if ip.IsUnspecified() || ip.IsMulticast() {
				return nil, fmt.Errorf("address %s is not one of an interface; without --addr the device has all of this machine's", ip)
			}
			if slices.ContainsFunc(out, func(a address) bool { return a.ip == ip }) {
				return nil, fmt.Errorf("address %s is given twice", ip)
			}
			a := address{ip: ip}
			if i := slices.IndexFunc(all, func(a address) bool { return a.ip == ip }); i >= 0 {
				a.netdev = all[i].netdev
			} else if ip.IsLoopback() {
				a.netdev = "lo"
			}
			out = append(out, a)
		}
	}
	return out, nil
}

// addressOf is the IP address of a GID.
func addressOf(gid [16]byte) netip.Addr { return netip.AddrFrom16(gid).Unmap() }
