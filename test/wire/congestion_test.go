package wire

import (
	"fmt"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/cable"
	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

// TestCongestion: two hosts write to a third over a bottleneck that marks packets. They
// share it, and its queue stays short.
//
//	A ──┐
//	    ├── hub ── bottleneck: 20 MB/s, marks from 40 frames on ── C
//	B ──┘
func TestCongestion(t *testing.T) {
	const mtu = 1500
	slow := cable.Bottleneck{Rate: 20 << 20, Queue: 1000, Mark: 40}
	var hosts []*host
	var ends []cable.End
	for i := range 3 {
		h := &host{space: cable.NewNamespace(t), ip4: fmt.Sprintf("10.99.0.%d", i+1)}
		ends = append(ends, cable.TAP(t, h.space, "eth0", mtu))
		h.space.Address(t, "eth0", h.ip4+"/24")
		h.addrs = h.ip4
		hosts = append(hosts, h)
	}
	hub := cable.Connect(t, 1, ends...)
	hub.Limit(t, ends[2], slow)
	for _, h := range hosts {
		h.start(t)
	}
	var talks []*harness.Conversation
	for _, h := range hosts[:2] {
		talks = append(talks, workload.Perf("write_bw", "-D 180 -f 0 -s 65536").Start(t, hosts[2].side(false), h.side(false)))
	}
	both := harness.Poll(minute, func() bool {
		time.Sleep(100 * time.Millisecond)
		b := hub.Load(ends[2]).Bytes
		return b[hosts[0].ip4] > 0 && b[hosts[1].ip4] > 0
	})
	if !both {
		t.Fatalf("not both of them send\n%v", talks)
	}
	time.Sleep(time.Second) // to find their shares
	hub.Load(ends[2])
	// The share is measured over some seconds. If a sender or the bottleneck had no processor for a part of them, the next
	// seconds count.
	var complaint string
	for range 8 {
		time.Sleep(3 * time.Second)
		l := hub.Load(ends[2])
		a, b := l.Bytes[hosts[0].ip4], l.Bytes[hosts[1].ip4]
		t.Logf("%d and %d bytes, %d frames, %d marked, %d lost, %d waiting on average", a, b, l.Frames, l.Marked, l.Lost, l.Queue())
		switch {
		case l.Marked == 0:
			complaint = "no packet was marked: this proves nothing"
		case a > 2*b || b > 2*a:
			complaint = fmt.Sprintf("%d bytes of one sender and %d of the other, want a share within 2 : 1", a, b)
		case l.Queue() > 2*slow.Mark || l.Lost > 0:
			complaint = fmt.Sprintf("%d frames were waiting on average and %d were lost, want a short queue (at most %d) and no loss", l.Queue(), l.Lost, 2*slow.Mark)
		default:
			complaint = ""
		}
		if complaint == "" {
			break
		}
	}
	if complaint != "" {
		t.Error(complaint)
	}
	// The receiver has seen the marks, and the senders its notifications.
	for i, names := range [][]string{{"rp_cnp_handled"}, {"rp_cnp_handled"}, {"np_ecn_marked_roce_packets", "np_cnp_sent"}} {
		for _, name := range names {
			if hosts[i].Status(t).Counters[name] == 0 {
				t.Errorf("%s of %s is 0", name, hosts[i].ip4)
			}
		}
	}
	for _, c := range talks {
		c.Client.End()
		c.Server.End()
	}
}
