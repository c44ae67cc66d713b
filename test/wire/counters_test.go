package wire

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/cable"
	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

// readCounters reads the host's counters from the device's files, as monitoring tools do, and compares them with `vrdma
// status`.
func (h *host) readCounters(t *testing.T) map[string]uint64 {
	t.Helper()
	out := h.Run(t, minute, "sh", "-c", "cd /sys/class/infiniband/rxe0/ports/1 && for f in counters/* hw_counters/*; do echo ${f##*/} $(cat $f); done")
	files := map[string]uint64{}
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) != 2 {
			t.Fatalf("a counter reads %q, want a name and a number", line)
		}
		if f[0] == "lifespan" {
			continue // a setting: how long the others may be cached
		}
		v, err := strconv.ParseUint(f[1], 10, 64)
		if err != nil {
			t.Fatalf("counter %s: %v", f[0], err)
		}
		files[f[0]] = v
	}
	status := h.Status(t).Counters
	// Messages between hosts, and packets from ports that are not the sending daemon's, are no counters of the device.
	maps.DeleteFunc(status, func(name string, _ uint64) bool { return strings.HasPrefix(name, "hello_") || name == "wrong_port" })
	if a, b := slices.Sorted(maps.Keys(files)), slices.Sorted(maps.Keys(status)); !slices.Equal(a, b) {
		t.Errorf("the files are\n%v\nand vrdma status has\n%v", a, b)
	}
	for name, v := range files {
		if status[name] < v {
			t.Errorf("%s is %d in its file and less, %d, in vrdma status", name, v, status[name])
		}
	}
	return files
}

// TestCounters causes every counted event and checks which side counts it.
func TestCounters(t *testing.T) {
	w := newLab(t, layout{mtu: 1500, cable: true})
	errors := harness.Compile(t, "errors")
	for _, c := range []struct {
		name   string
		faults cable.Faults
		run    func(t *testing.T)
		moved  string // by one of the two hosts
		still  string // by neither
	}{
		{
			name:  "traffic",
			run:   func(t *testing.T) { w.run(t, false, minute, workload.Perf("send_bw", "-n 50 -s 4096")) },
			moved: "sent_pkts rcvd_pkts rdma_sends rdma_recvs port_xmit_data port_rcv_data port_xmit_packets port_rcv_packets",
			still: "rx_icrc_encapsulated retry_exceeded_err link_downed",
		},
		{
			name: "late receives, and an ACK behind a READ",
			run: func(t *testing.T) {
				w.run(t, false, minute, workload.Exchange(t, "rc", "-n 24 -l 60000"))
			},
			moved: "rcvd_rnr_err send_rnr_err ack_deferred",
			still: "rx_icrc_encapsulated retry_exceeded_err",
		},
		{
			name: "loss", faults: cable.Faults{Drop: 0.05},
			run: func(t *testing.T) {
				w.run(t, false, minute, workload.Exchange(t, "rc", "-n 40 -l 60000"), workload.Perf("write_bw", "-n 100 -s 65536"))
			},
			moved: "retrans_pkts completer_retry_err out_of_seq_request rcvd_seq_err duplicate_request implied_nak_seq_err",
			still: "rx_icrc_encapsulated retry_exceeded_err",
		},
		{
			name: "duplicates", faults: cable.Faults{Duplicate: 0.2},
			run:   func(t *testing.T) { w.run(t, false, minute, workload.Perf("send_bw", "-n 100 -s 4096")) },
			moved: "duplicate_request",
			still: "rx_icrc_encapsulated retry_exceeded_err",
		},
		{
			name: "damage", faults: cable.Faults{Corrupt: 0.05},
			run:   func(t *testing.T) { w.run(t, false, minute, workload.Perf("send_bw", "-n 100 -s 4096")) },
			moved: "rx_icrc_encapsulated port_rcv_errors retrans_pkts",
			still: "retry_exceeded_err",
		},
		{
			name: "refusals",
			run: func(t *testing.T) {
				for _, name := range []string{"rnr_retry_zero", "retry_exceeded_peer_destroyed", "write_bad_rkey", "local_bad_lkey"} {
					w.a.Run(t, minute, errors, name)
				}
			},
			moved: "retry_rnr_exceeded_err retry_exceeded_err local_ack_timeout_err send_err resp_remote_access_errors",
			still: "rx_icrc_encapsulated link_downed",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			sum := func() map[string]uint64 {
				all := w.a.readCounters(t)
				for name, v := range w.b.readCounters(t) {
					all[name] += v
				}
				return all
			}
			before := sum()
			var after map[string]uint64
			var unmoved []string
			for range 5 { // chance decides which packets are lost, and which side is late
				w.cable.SetFaults(c.faults)
				c.run(t)
				w.cable.SetFaults(cable.Faults{})
				after = sum()
				unmoved = slices.DeleteFunc(strings.Fields(c.moved), func(name string) bool { return after[name] > before[name] })
				if len(unmoved) == 0 || t.Failed() {
					break
				}
			}
			for _, name := range unmoved {
				t.Errorf("%s: %d, as before; want more", name, after[name])
			}
			for _, name := range strings.Fields(c.still) {
				if v, there := after[name]; !there || v != before[name] {
					t.Errorf("%s: %d, and before %d; want no change", name, v, before[name])
				}
			}
		})
	}
}
