package bench

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// kernelDevice is an address of a device of the kernel's rxe.
type kernelDevice struct {
	name string
	gid  int // its index
	ip   netip.Addr
}

// findKernelDevice finds the first IPv4 address of the kernel's device.
func findKernelDevice(name, sysfs string) (kernelDevice, error) {
	if name == "" {
		return kernelDevice{}, errors.New("this needs a kernel with rdma_rxe: rdma link add NAME type rxe netdev INTERFACE, then --kernel-device NAME")
	}
	dir := filepath.Join(sysfs, "class/infiniband", name, "ports/1/gids")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return kernelDevice{}, fmt.Errorf("no device %s in this kernel: %w; rdma link add %s type rxe netdev INTERFACE", name, err, name)
	}
	var all []kernelDevice
	for _, e := range entries {
		index, err1 := strconv.Atoi(e.Name())
		text, err2 := os.ReadFile(filepath.Join(dir, e.Name()))
		raw, err3 := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(string(text)), ":", ""))
		if errors.Join(err1, err2, err3) != nil || len(raw) != 16 {
			continue // a place in the table that is empty
		}
		if ip := netip.AddrFrom16([16]byte(raw)); ip.Is4In6() {
			all = append(all, kernelDevice{name, index, ip.Unmap()})
		}
	}
	if len(all) == 0 {
		return kernelDevice{}, fmt.Errorf("the device %s has no IPv4 address: ip address add ADDRESS dev INTERFACE", name)
	}
	return slices.MinFunc(all, func(a, b kernelDevice) int { return a.gid - b.gid }), nil
}

// host is h as it is reached through the device.
func (k kernelDevice) host(h *Host) *Host {
	through := *h
	through.IP = k.ip.String()
	return &through
}

// sent is what the kernel's device has sent, in packets: rxe counts them, hardware counts words, too.
func (k *kernelDevice) sent(sysfs string) float64 {
	for _, name := range []string{"hw_counters/sent_pkts", "counters/port_xmit_packets", "counters/port_xmit_data"} {
		text, err := os.ReadFile(filepath.Join(sysfs, "class/infiniband", k.name, "ports/1", name))
		if err != nil {
			continue
		}
		if n, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64); err == nil {
			return n
		}
	}
	return 0
}

// ourDevice is what vrdma's device is called.
const ourDevice = "rxe0"
