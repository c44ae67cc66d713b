package tenants

import (
	"fmt"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/events"
	"vrdma.dev/vrdma/internal/tenancy/control"
	"vrdma.dev/vrdma/internal/tenancy/store"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
	"vrdma.dev/vrdma/test/harness"
)

// timed is a store that records the time of its last commit.
type timed struct {
	store.Store
	at time.Time
}

func (s *timed) Commit(conditions []store.Condition, writes []store.Write) (int64, bool, error) {
	revision, ok, err := s.Store.Commit(conditions, writes)
	s.at = time.Now()
	return revision, ok, err
}

// BenchmarkRevocation is how long after a store has committed a rule the last of ten thousand queue
// pairs that it forbids has ended: two programs with half of them each, busy with writing to each
// other. The command has been answered then, too.
func BenchmarkRevocation(b *testing.B) {
	harness.Need(b, "ib_write_bw")
	const each = 5000
	for b.Loop() {
		b.StopTimer()
		d := start(b, "")
		file, _, err := store.Open(filepath.Join(harness.Directory(b, nil), "store"))
		if err != nil {
			b.Fatal(err)
		}
		s := &timed{Store: file}
		plane, err := control.Open(control.Config{Store: s, Provisioner: d.provisioner})
		if err != nil {
			b.Fatal(err)
		}
		apply := func(text string) {
			objects, err := tenant.Parse("bench.yaml", []byte(text))
			if err == nil {
				_, _, err = plane.Change(tenant.Caller{Operator: true}, events.Actor{}, tenant.Change{Put: objects}, false)
			}
			if err != nil {
				b.Fatal(err)
			}
		}
		apply(aTenant("red") + aNIC("red", "a") + "---\n" + aNIC("red", "b"))
		sum := func(of func(*nic.NIC) int) (n int) {
			d.engine.Do(func() {
				for _, name := range []string{"red/a", "red/b"} {
					n += of(d.provisioner.NIC(key(name)).Device)
				}
			})
			return n
		}
		connected := func(n *nic.NIC) int { return n.Holdings().Connections }
		tcp := harness.FreePort(b)
		argv := []string{"ib_write_bw", "-d", "rxe0", "-x", "0", "-F", "-q", strconv.Itoa(each), "-t", "2", "-s", "8", "-D", "60", "-p", strconv.Itoa(tcp)}
		harness.Converse(b, tcp, d.at("red/a"), argv, d.at("red/b"), append(argv[:len(argv):len(argv)], "127.0.0.1"))
		if !harness.Poll(2*minute, func() bool { return sum(connected) == 2*each }) {
			b.Fatalf("%d queue pairs are connected, want %d", sum(connected), 2*each)
		}
		b.StartTimer()
		apply("apiVersion: vrdma.io/v1\nkind: Policy\nmetadata: {name: no, tenant: red}\nspec: {deny: [{}]}\n")
		took := time.Since(s.at)
		b.StopTimer()
		if n := sum(connected); n != 0 {
			b.Errorf("%d queue pairs are still connected", n)
		}
		if n := sum(func(n *nic.NIC) int { return int(n.Counters().Refusals[nic.Revoked]) }); n != 2*each {
			b.Errorf("%d queue pairs were revoked, want %d", n, 2*each)
		}
		b.ReportMetric(float64(took.Microseconds())/1000, "ms-after-commit")
		fmt.Printf("revoked %d queue pairs %v after the commit\n", 2*each, took)
		plane.Close()
		file.Close()
		b.StartTimer()
	}
}
