package wire

import (
	"testing"

	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

// everything is the pingpong and perftest set, and the program that checks every byte.
func everything(t *testing.T) []workload.Workload {
	ws := []workload.Workload{
		workload.Pingpong("rc", 1, 200, ""), workload.Pingpong("rc", 4096, 200, "-e"), workload.Pingpong("rc", 1<<20, 50, ""),
		workload.Pingpong("uc", 4096, 200, ""), workload.Pingpong("uc", 1<<18, 50, "-e"),
		workload.Pingpong("ud", 1, 200, ""), workload.Pingpong("ud", 1024, 200, "-e"),
		workload.Pingpong("srq", 1, 200, "-e"), workload.Pingpong("srq", 4096, 200, ""),
		workload.Exchange(t, "rc", "-n 200"), workload.Exchange(t, "uc", "-n 100"), workload.Exchange(t, "ud", "-n 100"),
		workload.Exchange(t, "rc", "-n 20 -l 400000 -s 2"), workload.Exchange(t, "rc", "-n 100 -m 256 -s 3"), workload.Exchange(t, "uc", "-n 100 -m 512 -s 3"),
	}
	for _, what := range []string{"lat", "bw"} {
		for _, size := range harness.Pick(fewSizes, allSizes) {
			ws = append(ws, workload.Perf("send_"+what, size), workload.Perf("write_"+what, size), workload.Perf("read_"+what, size))
		}
		for _, size := range harness.Pick(fewSizes, ucSizes) {
			ws = append(ws, workload.Perf("send_"+what, size+" -c UC"), workload.Perf("write_"+what, size+" -c UC"))
		}
		ws = append(ws, workload.Perf("send_"+what, harness.Pick("-n 50 -s 1024", "-n 500 -a")+" -c UD"),
			workload.Perf("atomic_"+what, "-n 500 -A FETCH_AND_ADD"), workload.Perf("atomic_"+what, "-n 500 -A CMP_AND_SWAP"))
	}
	for _, op := range []string{"send", "write", "read", "atomic"} {
		size := " -s 65536"
		if op == "atomic" {
			size = ""
		}
		ws = append(ws, workload.Perf(op+"_bw", "-n 200 -b"+size), workload.Perf(op+"_bw", "-n 100 -q 8"+size), workload.Perf(op+"_bw", "-n 100 -b -q 4"+size))
		if op != "write" {
			ws = append(ws, workload.Perf(op+"_bw", "-n 200 -e"+size), workload.Perf(op+"_lat", "-n 200 -e"))
		}
		if op == "send" || op == "write" {
			ws = append(ws, workload.Perf(op+"_bw", "-n 500 -I 64 -s 64"), workload.Perf(op+"_lat", "-n 500 -I 220 -s 220"))
		}
	}
	return append(ws, workload.Perf("send_bw", "-n 1024 -l 32 -s 1024"), workload.Perf("write_bw", "-n 1024 -l 32 -s 1024"),
		workload.Perf("send_bw", "-n 200 --use-srq -q 4 -s 1024"), workload.Perf("send_bw", "-n 200 -c UD -b -s 1024"),
		workload.Perf("write_bw", "-n 10 -s 67108864"), workload.Perf("write_bw", "-n 200 -s 65536 -m 256"), workload.Perf("write_bw", "-D 2 -f 0 -s 65536"))
}

// The lengths of messages, as perftest's arguments. All of them in one run (-a) take half a minute on a busy machine,
// because perftest measures the processor's clock for each. UC has no flow control, and perftest waits for ever for
// lost messages: a socket's buffer holds 100 messages of each length.
var (
	fewSizes = []string{"-n 50 -s 2", "-n 50 -s 65536"}
	allSizes = []string{"-n 200 -a"}
	ucSizes  = []string{"-n 100 -s 1", "-n 100 -s 1023", "-n 100 -s 1024", "-n 100 -s 1025", "-n 100 -s 4096", "-n 100 -s 65536", "-n 10 -s 1048576"}
)

// six are the tools for tests of the other axes; mtu is the path MTU.
func six(t *testing.T, mtu string) []workload.Workload {
	return []workload.Workload{
		workload.Exchange(t, "rc", "-n 100 -l 100000 -m "+mtu), workload.Exchange(t, "ud", "-n 100 -m "+mtu), workload.Pingpong("uc", 100000, 100, "-m "+mtu),
		workload.Perf("write_bw", "-n 100 -s 65536"), workload.Perf("read_lat", "-n 20 -s 100000"), workload.Perf("send_bw", "-n 200 -q 4 -b -s 65536"),
	}
}

// TestTools: every tool over the most common network.
func TestTools(t *testing.T) {
	w := newLab(t, layout{mtu: 1500})
	w.a.NoLeaks(t)
	w.b.NoLeaks(t)
	w.run(t, false, harness.Pick(3*minute, 5*minute), everything(t)...)
	// A fast sender must not flood a slow receiver.
	for _, h := range []*host{w.a, w.b} {
		if n := h.overflows(t); n > 0 {
			t.Errorf("%s: %d packets did not fit into the socket's buffer, want none lost on a clean wire", h.ip4, n)
		}
	}
}

// TestAxes: all kinds of packets and paths give the same results.
func TestAxes(t *testing.T) {
	plain := []string{"--no-gso", "--no-gro"}
	for _, c := range []struct {
		name string
		layout
		mtu string // of the path
		v6  bool
	}{
		{"ipv6", layout{mtu: 1500}, "1024", true},
		{"mtu9000", layout{mtu: 9000}, "4096", false},
		{"plain", layout{mtu: 1500, args: plain}, "1024", false},
		{"ipv6_mtu9000_plain", layout{mtu: 9000, args: plain}, "4096", true},
		{"no_gso", layout{mtu: 1500, args: plain[:1]}, "1024", false},
		{"no_gro", layout{mtu: 1500, args: plain[1:]}, "1024", false},
		{"small_frames", layout{mtu: 600}, "256", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newLab(t, c.layout)
			ws := six(t, c.mtu)
			const usual = 1500 // most tools want a path MTU of 1024
			if harness.All() && c.layout.mtu >= usual {
				ws = append(ws, everything(t)...)
			}
			w.run(t, c.v6, harness.Pick(3*minute, 5*minute), ws...)
		})
	}
}
