package workload

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/harness"
)

// run runs a program at a host to its end, which must be a good one.
func (h Host) run(t testing.TB, limit time.Duration, argv ...string) string {
	t.Helper()
	p := h.Program(t, argv...)
	if !p.Ended(limit) || p.Code() != 0 {
		p.End()
		t.Fatalf("%v failed (limit %v): %s\n%s", argv, limit, p.Fate(), p.Output())
	}
	return p.Output()
}

// Copy copies a file of random bytes with rcopy and compares checksums.
func Copy(t testing.TB, at, from Host, size int, limit time.Duration) {
	t.Helper()
	name := fmt.Sprintf("/tmp/vrdma-copy-%d-%d", harness.FreePort(t), time.Now().UnixNano())
	sent, got := name+".sent", name+".got"
	t.Cleanup(func() {
		from.run(t, limit, "rm", "-f", sent)
		at.run(t, limit, "rm", "-f", got)
	})
	from.run(t, limit, "sh", "-c", fmt.Sprintf("head -c %d /dev/urandom > %s", size, sent))
	w := Managed{Name: "rcopy", Port: 7427, Server: "rcopy", Client: "rcopy " + sent + " ADDR:" + got, Endless: true}
	w.Run(t, at, from, limit)
	sum := func(h Host, path string) string {
		text, _, _ := strings.Cut(h.run(t, limit, "sha256sum", path), " ")
		return text
	}
	if a, b := sum(from, sent), sum(at, got); a != b || len(a) != 64 {
		t.Errorf("%d bytes left with checksum %q and arrived with %q", size, a, b)
	}
}

// Qperf runs qperf's RC tests with connections made by rdma_cm.
func Qperf(t testing.TB, at, from Host, limit time.Duration) {
	t.Helper()
	const port = 19765
	s := at.Program(t, "qperf")
	defer func() {
		s.End()
		s.Ended(limit)
	}()
	at.Await(t, s, port)
	for _, test := range []string{"rc_lat", "rc_bw"} {
		out := qperfOnce(t, from, limit, "qperf", "-cm1", "-t", "1", at.IP, test)
		if !strings.Contains(out, strings.TrimPrefix(strings.Replace(test, "lat", "latency", 1), "rc_")) {
			t.Errorf("qperf -cm1 %s printed %q", test, out)
		}
	}
}

// qperfOnce runs a client of qperf until it is not refused. Its server (0.4.11) tells the
// client the port first and only then listens there: the client may be faster.
func qperfOnce(t testing.TB, from Host, limit time.Duration, argv ...string) string {
	t.Helper()
	const most = 10
	for i := 1; ; i++ {
		p := from.Program(t, argv...)
		ended := p.Ended(limit)
		if ended && p.Code() == 0 {
			return p.Output()
		}
		if !ended || i == most || !strings.Contains(p.Output(), "Event rejected") {
			p.End()
			t.Fatalf("%v failed (call %d of %d, limit %v): %s\n%s", argv, i, most, limit, p.Fate(), p.Output())
		}
		t.Logf("call %d came before the server listened", i)
	}
}
