package engine

import (
	"bytes"
	"testing"

	"vrdma/internal/transport"
)

// TestLongEntry: a scatter/gather entry may be longer than its region. What counts is the
// bytes that are touched.
func TestLongEntry(t *testing.T) {
	const room = 64 // bytes between the entry's start and the region's end
	for _, c := range []struct {
		name       string
		n          uint32
		recv, send transport.Status
	}{
		{"nothing", 0, transport.Success, transport.Success},
		{"what fits", room, transport.Success, transport.Success},
		{"a byte more", room + 1, transport.LocProtErr, transport.RemOpErr},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := pair(t)
			pattern(a.c.mem[:4096], 3)
			b.recv(clientMemory-room, 1<<20)
			a.post(wr{op: opSend, flags: signal, n: c.n})
			if w := b.wait(); w.status != uint32(c.recv) || c.recv == transport.Success && w.length != c.n {
				t.Errorf("receive of %d: %+v, want status %d", c.n, w, c.recv)
			}
			if w := a.wait(); w.status != uint32(c.send) {
				t.Errorf("send of %d: %+v, want status %d", c.n, w, c.send)
			}
			if c.recv == transport.Success && !bytes.Equal(b.c.mem[clientMemory-room:][:c.n], a.c.mem[:c.n]) {
				t.Error("bytes differ")
			}
		})
	}
	// A request touches all of its list.
	for _, op := range []uint32{opSend, opWrite, opRead} {
		a, b := pair(t)
		b.recv(0, 4096)
		a.post(wr{op: op, flags: signal, off: clientMemory - room, n: room + 1, remote: b.c.base, rkey: b.mr.RKey})
		if w := a.wait(); w.status != uint32(transport.LocProtErr) {
			t.Errorf("operation %d past the region's end: %+v, want status %d", op, w, transport.LocProtErr)
		}
	}
}
