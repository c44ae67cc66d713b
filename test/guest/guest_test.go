package guest

import (
	"testing"

	"vrdma/test/workload"
)

// TestRXE holds vrdma against the kernel's rxe. One guest serves all of it; each part
// leaves it as it was.
func TestRXE(t *testing.T) {
	l := newLab(t)
	t.Run("tools", l.tools)
	t.Run("managed", l.managed)
	t.Run("ipv6", l.ipv6)
	t.Run("mtu", l.mtu)
	t.Run("loss", l.loss)
	t.Run("faults", l.faults)
}

// tools: every tool, either side as the client.
func (l *lab) tools(t *testing.T) {
	l.capture(t)
	p := l.pair(t, l.daemon(t), false)
	for _, w := range everything(t) {
		p.both(t, w, minute)
	}
}

// everything is each of the tools that needs no connection manager, in each mode.
func everything(t *testing.T) []workload.Workload {
	ws := []workload.Workload{
		workload.Pingpong("rc", 4096, 50, ""), workload.Pingpong("rc", 1, 50, "-e"), workload.Pingpong("rc", 100000, 10, ""),
		workload.Pingpong("uc", 4096, 50, ""), workload.Pingpong("ud", 1024, 50, ""), workload.Pingpong("srq", 4096, 50, ""),
		workload.Exchange(t, "rc", ""), workload.Exchange(t, "uc", ""), workload.Exchange(t, "ud", ""),
	}
	for _, kind := range []string{"lat", "bw"} {
		for _, c := range []string{"RC", "UC", "UD"} {
			ws = append(ws, workload.Perf("send_"+kind, "-n 100 -s 1024 -c "+c))
		}
		for _, c := range []string{"RC", "UC"} {
			ws = append(ws, workload.Perf("send_"+kind, "-n 20 -s 65536 -c "+c), workload.Perf("write_"+kind, "-n 20 -s 65536 -c "+c))
		}
		ws = append(ws, workload.Perf("write_"+kind, "-n 100 -s 8"), workload.Perf("read_"+kind, "-n 100 -s 8"), workload.Perf("read_"+kind, "-n 20 -s 65536"),
			workload.Perf("atomic_"+kind, "-n 100 -A FETCH_AND_ADD"), workload.Perf("atomic_"+kind, "-n 100 -A CMP_AND_SWAP"))
	}
	return append(ws, workload.Perf("write_bw", "-n 20 -s 65536 -q 4"), workload.Perf("read_bw", "-n 20 -s 65536 -b"),
		workload.Perf("send_bw", "-n 20 -s 65536 -b"), workload.Perf("send_bw", "-n 50 -s 4096 --use-srq -q 2"))
}

// six represents the tools on the other axes.
func six(t *testing.T, more string) []workload.Workload {
	return []workload.Workload{
		workload.Pingpong("rc", 4096, 30, ""), workload.Pingpong("ud", 512, 30, ""), workload.Exchange(t, "rc", more),
		workload.Perf("write_bw", "-n 20 -s 65536"), workload.Perf("read_bw", "-n 20 -s 65536"), workload.Perf("atomic_lat", "-n 20"),
	}
}

func (l *lab) ipv6(t *testing.T) {
	l.capture(t)
	p := l.pair(t, l.daemon(t), true)
	for _, w := range pick(six, func(t *testing.T, _ string) []workload.Workload { return everything(t) })(t, "") {
		p.both(t, w, minute)
	}
}

// mtu: frames of 9000 bytes, and every path MTU over them.
func (l *lab) mtu(t *testing.T) {
	l.capture(t)
	l.setMTU(t, 9000)
	defer l.setMTU(t, 1500)
	d := l.daemon(t)
	p := l.pair(t, d, false)
	for _, w := range six(t, "-m 4096 -l 40000") {
		p.both(t, w, minute)
	}
	for _, m := range []string{"256", "512", "2048", "4096"} {
		p.both(t, workload.Exchange(t, "rc", "-n 8 -m "+m), minute)
		p.both(t, workload.Pingpong("uc", 10000, 10, "-m "+m), minute)
		p.both(t, workload.Perf("write_bw", "-n 20 -s 65536 -m "+m), minute)
	}
	p6 := l.pair(t, d, true)
	p6.both(t, workload.Exchange(t, "rc", "-n 8 -m 4096 -l 40000"), minute)
	p6.both(t, workload.Exchange(t, "ud", "-n 8 -m 4096"), minute)
}
