package guest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/cable"
	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

// loss: the cable drops one packet of a hundred in either direction.
func (l *lab) loss(t *testing.T) {
	l.cable.Keep(t)
	p := l.pair(t, l.daemon(t), false)
	before := l.cable.Count()
	l.cable.SetFaults(cable.Faults{Drop: 0.01})
	defer l.cable.SetFaults(cable.Faults{})
	for _, w := range []workload.Workload{
		exchange(t, "rc", "-n 12"), exchange(t, "uc", "-n 12 -x -l 4000"), exchange(t, "ud", "-n 12 -x"),
		// No pingpong: it ends without waiting for the other side, which then fails if the very last ACK was lost.
		perf("send_lat", "-n 50"), perf("send_bw", "-n 50 -s 4096 --use-srq -q 2"), perf("send_bw", "-n 20 -s 65536"), perf("write_bw", "-n 20 -s 65536"), perf("read_bw", "-n 20 -s 65536"),
		perf("atomic_bw", "-n 100"),
	} {
		p.both(t, w)
	}
	if after := l.cable.Count(); after.Dropped < before.Dropped+20 {
		t.Errorf("the cable lost %d packets of %d: this proves little", after.Dropped-before.Dropped, after.Carried-before.Carried)
	}
}

// faults: the cable duplicates, reorders and damages packets.
func (l *lab) faults(t *testing.T) {
	l.cable.Keep(t)
	p := l.pair(t, l.daemon(t), false)
	for name, f := range map[string]cable.Faults{
		"duplicate": {Duplicate: 0.05}, "reorder": {Reorder: 0.01}, "corrupt": {Corrupt: 0.01},
	} {
		t.Run(name, func(t *testing.T) {
			l.cable.SetFaults(f)
			defer l.cable.SetFaults(cable.Faults{})
			for _, kind := range []string{"rc", "uc", "ud"} {
				p.both(t, exchange(t, kind, "-n 8 -x -l 8000"))
			}
		})
	}
}

// suspended: our NIC stands still in the middle of what rxe asks of it, as while it moves to another host, for longer
// than the guest's retries would last. rxe takes RNR NAKs for an answer to every operation, waits, and continues.
func (l *lab) suspended(t *testing.T) {
	d := l.daemon(t)
	p := l.pair(t, d, false)
	vrdma := func(args ...string) {
		t.Helper()
		harness.Spawn(t, d.Command(args...)).OK(t, limit)
	}
	// 7 retries of 67 ms each; patience would last longer than the suspension.
	for _, w := range []workload.Workload{workload.Perf("write_bw", "-n 20 -s 65536 -u 14"), workload.Perf("send_bw", "-n 20 -s 65536 -u 14"), workload.Perf("read_bw", "-n 20 -s 65536 -u 14")} {
		before := d.Status(t).Counters["send_rnr_err"]
		vrdma("fault", "add", "--name", "still", "suspend,message=5,direction=in,for=2s")
		t.Run(w.Name, func(t *testing.T) { p.persist(t, w, p.ours, p.guest) })
		vrdma("fault", "remove", "still")
		if n := d.Status(t).Counters["send_rnr_err"]; n == before {
			t.Errorf("%s: rxe has got no RNR NAK", w.Name)
		}
	}
}

// upgraded: our daemon is replaced in the middle of conversations with rxe, as requester and as responder. No program
// notices.
func (l *lab) upgraded(t *testing.T) {
	d := harness.StartUpgradable(t, l.options())
	p := l.pair(t, d, false)
	for _, w := range []workload.Workload{
		exchange(t, "rc", "-n 100"), exchange(t, "ud", "-n 100 -x"), perf("write_bw", "-D 3 -f 0 -s 65536"), perf("read_bw", "-D 3 -f 0 -s 65536"), perf("send_bw", "-D 3 -f 0 -s 4096 --use-srq -q 2"),
	} {
		t.Run(w.Name+"/guest_client", func(t *testing.T) { p.persist(t, upgrading{w, d, l}, p.ours, p.guest) })
		t.Run(w.Name+"/our_client", func(t *testing.T) { p.persist(t, upgrading{w, d, l}, p.guest, p.ours) })
	}
}

// upgrading is a workload during which the daemon is replaced.
type upgrading struct {
	workload.Workload
	daemon *harness.Daemon
	lab    *lab
}

func (u upgrading) Try(t testing.TB, at, from workload.Host, limit time.Duration) error {
	before := u.lab.cable.Count().Carried
	c := u.Start(t, at, from)
	const flowing = 100
	if !harness.Poll(limit, func() bool { return u.lab.cable.Count().Carried > before+flowing || c.Client.Ended(0) }) {
		return fmt.Errorf("fewer than %d packets in %v\n%v", flowing, limit, c)
	}
	ended := c.Client.Ended(0)
	u.daemon.Upgrade(t)
	if ended {
		t.Errorf("the client ended before the upgrade began\n%v", c)
	}
	return u.Check(c, limit)
}

// death: the guest loses power in the middle of a transfer. Our requests end with an error, and the daemon goes on.
func (l *lab) death(t *testing.T) {
	d := l.daemon(t)
	p := l.pair(t, d, false)
	const args = "-D 600 -f 0 -s 4096 -t 8" // these would not end by themselves
	theirs := perf("write_bw", args).Start(t, p.ours, p.guest)
	var ours []*harness.Conversation
	for _, tool := range []string{"write_bw", "read_bw", "send_bw"} {
		ours = append(ours, perf(tool, args).Start(t, p.guest, p.ours))
	}
	sending := func() (n int) {
		for _, s := range d.Status(t).Sessions {
			for _, q := range s.QPs {
				if q.Outstanding > 0 {
					n++
				}
			}
		}
		return n
	}
	if !harness.Poll(limit, func() bool { return sending() == len(ours) }) {
		t.Fatalf("%d queue pairs send after %v, want %d\n%v", sending(), limit, len(ours), ours)
	}
	const flowing = 1000
	before := l.cable.Count().Carried
	if !harness.Poll(limit, func() bool { return l.cable.Count().Carried > before+flowing }) {
		t.Fatalf("fewer than %d packets in %v\n%v", flowing, limit, ours)
	}
	l.guest.Kill()
	for _, c := range ours {
		if !c.Client.Ended(limit) {
			t.Errorf("it still runs %v after the guest's death\n%v", limit, c)
			continue
		}
		const retryExceeded = "Failed status 12"
		if !strings.Contains(c.Client.Output(), retryExceeded) {
			t.Errorf("the client does not say %q\n%v", retryExceeded, c)
		}
	}
	theirs.Server.End()
	workload.Exchange(t, "rc", "-n 5").Run(t, p.ours, p.ours, limit)
}
