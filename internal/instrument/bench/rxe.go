package bench

import (
	"context"
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

// rxe compares vrdma with the kernel's rxe on the same machine, which needs a kernel
// that has it: see part guest.
func (t *Table) rxe() part {
	return part{
		name: "rxe", asked: true, single: true,
		rows: rxeRows(""),
		measure: func(ctx context.Context, rows []Row) error {
			kernel, err := findKernelDevice(t.Kernel, "/sys")
			if err != nil {
				return err
			}
			h, _, err := t.here(ctx)
			if err != nil {
				return err
			}
			ours, theirs := h.loop(), kernel.host(h).loop()
			// Devices are named, so that no program measures the other one.
			us, them := []string{"-d", ourDevice}, []string{"-d", kernel.name, "-x", strconv.Itoa(kernel.gid)}
			probes := []Probe{
				0: on(ours.throughput(device, averageRate, "ib_write_bw", bulkSize, 10000, us...), "vrdma"),
				1: on(theirs.throughput(plain, averageRate, "ib_write_bw", bulkSize, 1000, them...), "rxe"),
				2: on(ours.throughput(device, messageRate, "ib_write_bw", smallMessage, 50000, us...), "vrdma"),
				3: on(theirs.throughput(plain, messageRate, "ib_write_bw", smallMessage, 10000, them...), "rxe"),
			}
			return t.fill(ctx, t.Rounds, probes, rows, []source{{0, 1}, {2, 3}})
		},
	}
}

// rxeRows are the rows of parts rxe and guest.
func rxeRows(where string) []Row {
	return []Row{
		ratioRow(where+"write bandwidth, 64 KiB, against the kernel's rxe", 2),
		ratioRow(where+"8 B writes, against the kernel's rxe", 2),
	}
}

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

// ourDevice is what vrdma's device is called.
const ourDevice = "rxe0"
