package engine

import (
	"testing"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/transport"
)

// TestNewestAckCounts: of two waiting acknowledgements, the one for the later packet is sent, whichever came last. The
// answer to a duplicate may be for older packets.
func TestNewestAckCounts(t *testing.T) {
	for _, c := range []struct {
		name          string
		first, second uint32
		want          uint32
	}{
		{"in order", 50, 100, 100},
		{"a duplicate after it", 100, 50, 100},
		{"over the wrap", 0xfffffe, 3, 3},
		{"a duplicate over the wrap", 3, 0xfffffe, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, q := &loop{}, &task{q: &nic.QP{}}
			e.connect()
			e.net.queueAck(q, &q.route, &transport.Burst{Kind: transport.KindAck, PSN: c.first})
			e.net.queueAck(q, &q.route, &transport.Burst{Kind: transport.KindAck, PSN: c.second})
			if got := e.net.acks.list[0].b.PSN; e.net.acks.n != 1 || got != c.want {
				t.Errorf("%d wait, the first for %#x; want one, for %#x", e.net.acks.n, got, c.want)
			}
		})
	}
}
