package engine

import (
	"bytes"
	"encoding/binary"
	"testing"

	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/transport"
)

// TestLongEntry: a scatter/gather entry may be longer than its region. Only the touched bytes count.
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

// TestFlushRegion: a flush of a whole region needs its key, and no range.
func TestFlushRegion(t *testing.T) {
	a, b := pair(t)
	const global, region, flushable = 1, 1, 0x1 | 0x100 // local write, flush global
	var mr nic.MRInfo
	r, err := b.c.space.Map(b.c.base, 4096, []memory.Extent{{Start: b.c.base, Offset: b.c.base, Length: 4096, Kind: memory.Own, Prot: 3}})
	if err != nil {
		t.Fatal(err)
	}
	b.c.do(func() (err error) {
		mr, err = b.c.s.RegMR(nic.MRParams{PD: b.pd, Start: b.c.base, Length: 4096, HcaVA: b.c.base, Access: flushable, Region: r})
		if err != nil {
			return err
		}
		const access = 1 << 3
		return b.c.s.ModifyQP(b.info.Handle, access, &nic.QPAttr{AccessFlags: 0xf | flushable})
	})
	flush := func(va uint64, rkey uint32) wc {
		slot := a.sq.slot(a.posted)
		a.write(wr{op: uint32(transport.WRFlush), flags: signal, n: 8192, remote: va})
		le := binary.NativeEndian
		le.PutUint32(slot[36:], rkey)
		slot[40], slot[41] = global, region
		a.ring()
		return a.wait()
	}
	if w := flush(0, mr.RKey); w.status != 0 {
		t.Errorf("flush of a region of 4096 bytes with a range of 8192 at 0: %+v", w)
	}
	if w := flush(b.c.base, b.mr.RKey); w.status != uint32(transport.RemAccessErr) {
		t.Errorf("flush of a region that does not allow it: %+v, want status %d", w, transport.RemAccessErr)
	}
}
