package sysfs

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/net/roce"
)

func testNIC() *nic.NIC {
	return nic.New(nic.Config{Name: "rxe0", NodeGUID: 0x020000fffe000001, GIDs: []nic.GIDEntry{
		{GID: netip.MustParseAddr("192.0.2.1").As16(), NetDev: "eth0"},
		{GID: netip.MustParseAddr("127.0.0.1").As16(), NetDev: "lo"},
	}})
}

func TestTree(t *testing.T) {
	root := filepath.Join(t.TempDir(), "s.sock.d", "sys")
	value := uint64(0)
	tr, err := New(root, testNIC(), 0o755, func() []Counter { return []Counter{{HWCounters, "sent_pkts", value}} })
	if err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(root, "class", name))
		if err != nil {
			t.Error(err)
		}
		return string(b)
	}
	for name, want := range map[string]string{
		"infiniband_verbs/abi_version":                    "6\n",
		"infiniband_verbs/uverbs0/ibdev":                  "rxe0\n",
		"infiniband_verbs/uverbs0/dev":                    "231:192\n",
		"infiniband_verbs/uverbs0/abi_version":            "2\n",
		"misc/rdma_cm/abi_version":                        "4\n",
		"infiniband_mad/abi_version":                      "5\n",
		"infiniband/rxe0/node_type":                       "1: CA\n",
		"infiniband/rxe0/node_guid":                       "0200:00ff:fe00:0001\n",
		"infiniband/rxe0/sys_image_guid":                  "0200:00ff:fe00:0001\n",
		"infiniband/rxe0/node_desc":                       "rxe\n",
		"infiniband/rxe0/fw_ver":                          "\n",
		"infiniband/rxe0/parent":                          "eth0\n",
		"infiniband/rxe0/ports/1/state":                   "4: ACTIVE\n",
		"infiniband/rxe0/ports/1/phys_state":              "5: LinkUp\n",
		"infiniband/rxe0/ports/1/rate":                    "100 Gb/sec (4X EDR)\n",
		"infiniband/rxe0/ports/1/link_layer":              "Ethernet\n",
		"infiniband/rxe0/ports/1/lid":                     "0x0\n",
		"infiniband/rxe0/ports/1/cap_mask":                "0x00010000\n",
		"infiniband/rxe0/ports/1/pkeys/0":                 "0xffff\n",
		"infiniband/rxe0/ports/1/gids/0":                  "0000:0000:0000:0000:0000:ffff:c000:0201\n",
		"infiniband/rxe0/ports/1/gids/1":                  "0000:0000:0000:0000:0000:ffff:7f00:0001\n",
		"infiniband/rxe0/ports/1/gid_attrs/types/1":       "RoCE v2\n",
		"infiniband/rxe0/ports/1/gid_attrs/ndevs/1":       "lo\n",
		"infiniband/rxe0/ports/1/hw_counters/rcvd_pkts":   "0\n",
		"infiniband/rxe0/ports/1/counters/port_xmit_data": "0\n",
		"infiniband/rxe0/ports/1/hw_counters/rdma_sends":  "0\n",
	} {
		if got := read(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	for _, dir := range []string{"infiniband/rxe0/device/net/eth0", "infiniband/rxe0/device/net/lo", "infiniband_verbs/uverbs0/device/net/lo"} {
		if info, err := os.Stat(filepath.Join(root, "class", dir)); err != nil || !info.IsDir() || info.Mode().Perm() != 0o755 {
			t.Errorf("%s: %v, %v; want a directory that others can enter", dir, info, err)
		}
	}
	// What NCCL does with the device to find the PCI bus that it is at: no other device, and no PCI.
	path, err := filepath.EvalSymlinks(filepath.Join(root, "class/infiniband/rxe0/device"))
	if err != nil || !strings.Contains(path, "/devices/virtual/") {
		t.Errorf("the parent device is %s, %v; want one below devices/virtual", path, err)
	}
	merged := []byte(path)
	for _, i := range []int{1, 3, 4} {
		merged[len(merged)-i] = '0'
	}
	subsystem, err := filepath.EvalSymlinks(filepath.Join(string(merged), "subsystem"))
	if err != nil || filepath.Base(subsystem) != "vrdma" {
		t.Errorf("the subsystem of %s is %s, %v; want vrdma", merged, subsystem, err)
	}

	// A counter changes in place: neither directory nor inode is new.
	device := filepath.Join(root, "class/infiniband/rxe0")
	before, err := os.Stat(device)
	if err != nil {
		t.Fatal(err)
	}
	counterFile := filepath.Join(device, "ports/1/hw_counters/sent_pkts")
	inode, _ := os.Stat(counterFile)
	value = 12345
	tr.Sync()
	if got := read("infiniband/rxe0/ports/1/hw_counters/sent_pkts"); got != "12345\n" {
		t.Errorf("sent_pkts %q after sync", got)
	}
	if after, _ := os.Stat(device); !after.ModTime().Equal(before.ModTime()) {
		t.Error("the device's directory has a new modification time")
	}
	if now, _ := os.Stat(counterFile); !os.SameFile(inode, now) {
		t.Error("the counter is a new file")
	}

	if err := tr.Remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Dir(root)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after remove: %v, want nothing left", err)
	}
}

// TestTreeKeeps leaves the shared object beside the tree alone.
func TestTreeKeeps(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	tr, err := New(filepath.Join(dir, "sys"), testNIC(), 0o700, func() []Counter { return nil })
	if err != nil {
		t.Fatal(err)
	}
	lib := filepath.Join(dir, "libvrdma.so")
	if err := os.WriteFile(lib, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := tr.Remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(lib); err != nil {
		t.Error(err)
	}
}

// TestCounterNames keeps the names that tools read.
func TestCounterNames(t *testing.T) {
	names := map[string]bool{}
	for _, c := range Counters(nic.Counters{}, roce.Counters{}) {
		if names[c.Dir+"/"+c.Name] {
			t.Errorf("%s is there twice", c.Name)
		}
		names[c.Dir+"/"+c.Name] = true
	}
	for _, want := range strings.Fields(`hw_counters/sent_pkts hw_counters/rcvd_pkts hw_counters/duplicate_request
		hw_counters/out_of_seq_request hw_counters/rcvd_rnr_err hw_counters/send_rnr_err hw_counters/rcvd_seq_err
		hw_counters/ack_deferred hw_counters/retry_exceeded_err hw_counters/retry_rnr_exceeded_err
		hw_counters/completer_retry_err hw_counters/send_err hw_counters/link_downed hw_counters/rdma_sends
		hw_counters/rdma_recvs
		hw_counters/local_ack_timeout_err hw_counters/retrans_pkts hw_counters/implied_nak_seq_err
		hw_counters/resp_remote_access_errors hw_counters/rx_icrc_encapsulated hw_counters/rx_roce_error_pkts
		hw_counters/rx_roce_discard_pkts hw_counters/np_ecn_marked_roce_packets hw_counters/np_cnp_sent
		hw_counters/rp_cnp_handled
		counters/port_xmit_data counters/port_rcv_data counters/port_xmit_packets
		counters/port_rcv_packets`) {
		if !names[want] {
			t.Errorf("%s is missing", want)
		}
	}
}

func TestRate(t *testing.T) {
	for got, want := range map[string]string{
		rateText(1, 1):                         "2.5 Gb/sec (1X SDR)",
		rateText(nic.PortWidth, nic.PortSpeed): "100 Gb/sec (4X EDR)",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
