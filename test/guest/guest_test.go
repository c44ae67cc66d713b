package guest

import (
	"path/filepath"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

// TestRXE tests vrdma against the kernel's rxe. One guest serves all parts; each part leaves it unchanged.
func TestRXE(t *testing.T) {
	l := newLab(t)
	t.Run("taken", l.taken)
	t.Run("memory", l.memory)
	t.Run("tools", l.tools)
	t.Run("foreign", l.foreign)
	t.Run("managed", l.managed)
	t.Run("go", l.goVerbs)
	if harness.All() {
		t.Run("pressure", l.pressure)
		t.Run("store", l.store)
	}
	t.Run("multicast", l.multicast)
	t.Run("answers", l.answers)
	t.Run("ipv6", l.ipv6)
	t.Run("mtu", l.mtu)
	t.Run("overlay", l.overlay)
	t.Run("sealed", l.sealed)
	t.Run("loss", l.loss)
	t.Run("faults", l.faults)
	t.Run("suspended", l.suspended)
	t.Run("upgraded", l.upgraded)
	t.Run("death", l.death) // last, because it ends the guest
	t.Logf("%d attempts failed with an excuse and were repeated", l.excused.Load())
}

// taken: in the guest the kernel has the port. A daemon that is started there explains it.
func (l *lab) taken(t *testing.T) {
	harness.Build(t)
	libraries, err := filepath.Glob(filepath.Join(filepath.Dir(harness.Library()), "*.so"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(libraries, harness.Binary()) {
		l.guest.Install(t, file)
	}
	p := l.guest.Launch(t, harness.Binary(), "daemon", "--socket", "/tmp/vrdma.sock", "--addr", guestIP4)
	if !p.Ended(limit) || p.Code() != 3 {
		t.Errorf("a daemon beside rxe: %s, want exit status 3 (the environment lacks something)\n%s", p.Fate(), p.Output())
	}
	for _, want := range []string{"4791", guestIP4, "taken", "rdma_rxe", "rdma link"} {
		if !strings.Contains(p.Output(), want) {
			t.Errorf("a daemon beside rxe does not say %q:\n%s", want, p.Output())
		}
	}
}

// tools: every tool, with either side as the client.
func (l *lab) tools(t *testing.T) {
	l.cable.Keep(t)
	p := l.pair(t, l.daemon(t), false)
	for _, w := range everything(t) {
		p.both(t, w)
	}
}

// patience is the local ACK timeout, half a second, where a tool lets us choose. The guest
// is emulated and the machine may be busy: it answers late, and rxe (Linux 6.1) does not
// survive that. When the ACK of a message arrives while rxe sends that message again, it
// moves on without completing it, and its next retry sends an empty packet in its stead
// and everything behind it with PSNs that are one too high.
const patience = " -u 17"

func perf(tool, args string) workload.Workload { return workload.Perf(tool, args+patience) }

func exchange(t *testing.T, kind, args string) workload.Workload {
	return workload.Exchange(t, kind, args+patience)
}

// everything is each tool that needs no connection manager, in each mode.
func everything(t *testing.T) []workload.Workload {
	ws := []workload.Workload{
		workload.Pingpong("rc", 4096, 50, ""), workload.Pingpong("rc", 1, 50, "-e"), workload.Pingpong("rc", 100000, 10, ""),
		workload.Pingpong("uc", 4096, 50, ""), workload.Pingpong("ud", 1024, 50, ""), workload.Pingpong("srq", 4096, 50, ""),
		exchange(t, "rc", ""), exchange(t, "uc", "-l 6000"), exchange(t, "ud", ""),
	}
	for _, kind := range []string{"lat", "bw"} {
		// UC has no flow control: more messages than the guest's queues hold would be lost.
		ws = append(ws, perf("send_"+kind, "-n 50 -s 1024"), perf("send_"+kind, "-n 10 -s 8192 -c UC"), perf("send_"+kind, "-n 50 -s 1024 -c UD"),
			perf("write_"+kind, "-n 50 -s 8"), perf("write_"+kind, "-n 10 -s 8192 -c UC"), perf("read_"+kind, "-n 50 -s 8"),
			perf("atomic_"+kind, "-n 50 -A FETCH_AND_ADD"), perf("atomic_"+kind, "-n 50 -A CMP_AND_SWAP"))
	}
	for _, tool := range harness.Pick([]string{"send_bw", "write_bw", "read_bw"}, []string{"send_bw", "send_lat", "write_bw", "write_lat", "read_bw", "read_lat"}) {
		ws = append(ws, perf(tool, "-n 20 -s 65536"))
	}
	return append(ws, perf("write_bw", "-n 10 -s 65536 -q 4"), perf("read_bw", "-n 20 -s 65536 -b"), perf("send_bw", "-n 20 -s 65536 -b"),
		perf("send_bw", "-n 50 -s 4096 --use-srq -q 2"))
}

// foreign: vrdma asks rxe who it is, by either address, and recognizes it as foreign.
func (l *lab) foreign(t *testing.T) {
	d := l.daemon(t)
	for _, v6 := range []bool{false, true} {
		p := l.pair(t, d, v6)
		p.both(t, exchange(t, "rc", "-n 5"))
	}
	foreign := func(ip string) (found bool) {
		for _, h := range d.Status(t).Peers {
			found = found || h.Address == ip && h.Kind == "foreign" && len(h.Features) == 0
		}
		return found
	}
	for _, ip := range []string{guestIP4, guestIP6} {
		if !harness.Poll(limit, func() bool { return foreign(ip) }) {
			t.Errorf("the guest at %s is not held to be foreign: %+v", ip, d.Status(t).Peers)
		}
	}
	c := d.Status(t).Counters
	if c["hello_asked"] == 0 || c["hello_refused"]+c["hello_ignored"] == 0 || c["hello_recognised"]+c["selective_repairs"]+c["stashed_packets"] != 0 {
		t.Errorf("asked %d times, refused %d, recognised %d, %d repairs, %d packets stashed; want questions that Linux refuses, and nothing else",
			c["hello_asked"], c["hello_refused"], c["hello_recognised"], c["selective_repairs"], c["stashed_packets"])
	}
}

// six are the tools for tests of the other axes.
func six(t *testing.T, more string) []workload.Workload {
	return []workload.Workload{
		workload.Pingpong("rc", 4096, 30, ""), workload.Pingpong("ud", 512, 30, ""), exchange(t, "rc", more),
		perf("write_bw", "-n 20 -s 65536"), perf("read_bw", "-n 20 -s 65536"), perf("atomic_lat", "-n 20"),
	}
}

func (l *lab) ipv6(t *testing.T) {
	l.cable.Keep(t)
	p := l.pair(t, l.daemon(t), true)
	for _, w := range harness.Pick(six, func(t *testing.T, _ string) []workload.Workload { return everything(t) })(t, "") {
		p.both(t, w)
	}
}

// mtu: frames of 9000 bytes, and every path MTU over them.
func (l *lab) mtu(t *testing.T) {
	l.cable.Keep(t)
	l.setMTU(t, 9000)
	defer l.setMTU(t, 1500)
	d := l.daemon(t)
	p := l.pair(t, d, false)
	for _, w := range six(t, "-m 4096 -l 40000") {
		p.both(t, w)
	}
	for _, m := range []string{"256", "512", "2048", "4096"} {
		p.both(t, exchange(t, "rc", "-n 8 -m "+m))
		p.both(t, workload.Pingpong("uc", 10000, 10, "-m "+m))
	}
	p.both(t, perf("write_bw", "-n 20 -s 65536 -m 256"))
	p6 := l.pair(t, d, true)
	p6.both(t, exchange(t, "rc", "-n 8 -m 4096 -l 40000"))
	p6.both(t, exchange(t, "ud", "-n 8 -m 4096"))
}
