package testbed

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

// A KernelDevice is an RDMA device of the kernel, and its first IPv4 address.
type KernelDevice struct {
	Name string
	GID  int // index in the GID table
	ip   netip.Addr
}

// FindKernelDevice finds the first IPv4 address of the device.
func FindKernelDevice(name, sysfs string) (KernelDevice, error) {
	if name == "" {
		return KernelDevice{}, errors.New("this needs a kernel with rdma_rxe: rdma link add NAME type rxe netdev INTERFACE, then --kernel-device NAME")
	}
	dir := filepath.Join(sysfs, "class/infiniband", name, "ports/1/gids")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return KernelDevice{}, fmt.Errorf("no device %s in this kernel: %w; rdma link add %s type rxe netdev INTERFACE", name, err, name)
	}
	var all []KernelDevice
	for _, e := range entries {
		index, err1 := strconv.Atoi(e.Name())
		text, err2 := os.ReadFile(filepath.Join(dir, e.Name()))
		raw, err3 := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(string(text)), ":", ""))
		if errors.Join(err1, err2, err3) != nil || len(raw) != 16 {
			continue // an empty entry of the GID table
		}
		if ip := netip.AddrFrom16([16]byte(raw)); ip.Is4In6() {
			all = append(all, KernelDevice{name, index, ip.Unmap()})
		}
	}
	if len(all) == 0 {
		return KernelDevice{}, fmt.Errorf("the device %s has no IPv4 address: ip address add ADDRESS dev INTERFACE", name)
	}
	return slices.MinFunc(all, func(a, b KernelDevice) int { return a.GID - b.GID }), nil
}

// Host returns h with the address of the device.
func (k KernelDevice) Host(h *Host) *Host {
	through := *h
	through.IP = k.ip.String()
	return &through
}

// sentPackets returns how many packets the device has sent. Hardware may count words of data instead.
func (k *KernelDevice) sentPackets(sysfs string) float64 {
	for _, name := range []string{"hw_counters/sent_pkts", "counters/port_xmit_packets", "counters/port_xmit_data"} {
		text, err := os.ReadFile(filepath.Join(sysfs, "class/infiniband", k.Name, "ports/1", name))
		if err != nil {
			continue
		}
		if n, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64); err == nil {
			return n
		}
	}
	return 0
}

// DeviceName is the name of vrdma's device.
const DeviceName = "rxe0"
