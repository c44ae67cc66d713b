package nic

import (
	"encoding/binary"
	"slices"
	"testing"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/wire"
)

// aligned returns n bytes that start on an 8-byte border, as ring slots do.
func aligned(n int) []byte { return make([]byte, (n+63)&^63)[:n] }

// FuzzSendWQE reads work requests of arbitrary bytes: whatever a client writes into
// its ring, the result obeys the limits that the rest of the NIC relies on.
func FuzzSendWQE(f *testing.F) {
	good := aligned(512)
	binary.NativeEndian.PutUint32(good[12:], uint32(transport.WRWrite))
	binary.NativeEndian.PutUint32(good[196:], 2)
	binary.NativeEndian.PutUint32(good[216:], 100)
	f.Add(good, uint8(0), uint32(4))
	f.Add(aligned(256), uint8(2), uint32(1))
	f.Fuzz(func(t *testing.T, raw []byte, typ uint8, maxSGE uint32) {
		for size := 256; size <= 1024; size *= 2 {
			slot := aligned(size)
			copy(slot, raw)
			service := ib.RC + ib.Service(typ%3)
			max := maxSGE%transport.MaxSGE + 1
			var w transport.SendWQE
			parseSend(slot, service, max, &w)
			if !w.Op.Valid(service) {
				t.Errorf("operation %d is none of service %d", w.Op, service)
			}
			if uint32(w.NumSGE) > max {
				t.Errorf("%d entries, at most %d", w.NumSGE, max)
			}
			if w.Length > transport.MaxMessage {
				t.Errorf("length %d", w.Length)
			}
			if w.Bad == transport.Success && w.Flags&transport.FlagInline != 0 && int(w.Length) > size-abi.SendWQESize {
				t.Errorf("inline length %d in a slot of %d", w.Length, size)
			}
		}
	})
}

// TestFlushWQE reads a flush as the newest provider writes it (struct rxe_send_wr: flush is
// remote_addr, length, rkey, type, level, and the length is in dma alone).
func TestFlushWQE(t *testing.T) {
	slot := aligned(256)
	binary.NativeEndian.PutUint32(slot[12:], uint32(transport.WRFlush))
	binary.NativeEndian.PutUint64(slot[24:], 0x1234_5678_9abc)
	binary.NativeEndian.PutUint32(slot[36:], 0xabcd)
	slot[40], slot[41] = 2, 1 // persistent, the whole region
	binary.NativeEndian.PutUint32(slot[abi.SendDMALength:], 100_000)
	var w transport.SendWQE
	parseSend(slot, ib.RC, 4, &w)
	feth := wire.FETH(make([]byte, wire.FETHSize))
	feth.SetBits(w.Imm)
	if w.Op != transport.WRFlush || w.Bad != transport.Success || w.RemoteAddr != 0x1234_5678_9abc || w.RKey != 0xabcd || w.Length != 100_000 ||
		feth.Placement() != wire.FlushPersistent || feth.Selectivity() != wire.FlushRegion {
		t.Errorf("%+v, placement %d, selectivity %d", w, feth.Placement(), feth.Selectivity())
	}
}

// FuzzRecvWQE is the same for receives.
func FuzzRecvWQE(f *testing.F) {
	f.Add(aligned(64), uint32(1))
	f.Fuzz(func(t *testing.T, raw []byte, maxSGE uint32) {
		slot := aligned(64)
		copy(slot, raw)
		max := maxSGE%transport.MaxSGE + 1
		var w transport.RecvWQE
		parseRecv(slot, max, &w)
		if uint32(w.NumSGE) > max || int(w.NumSGE)*abi.SGESize > 64-abi.RecvWQESize {
			t.Errorf("%d entries, at most %d", w.NumSGE, max)
		}
	})
}

// FuzzIndices lets the client write anything into the shared words of a ring.
func FuzzIndices(f *testing.F) {
	f.Add(uint32(0), uint32(1), uint32(7), uint32(9))
	f.Fuzz(func(t *testing.T, producer, consumer, log2, mask uint32) {
		a, err := NewArena()
		if err != nil {
			t.Skip(err)
		}
		defer a.Close()
		r, err := newRing(a, 10, 256)
		if err != nil {
			t.Fatal(err)
		}
		shared32(r.mem, abi.QueueProducerIndex).Store(producer)
		shared32(r.mem, abi.QueueConsumerIndex).Store(consumer)
		shared32(r.mem, abi.QueueLog2ElemSize).Store(log2)
		shared32(r.mem, abi.QueueIndexMask).Store(mask)

		w := workRing{ring: r}
		if n := w.posted(); n > w.mask {
			t.Errorf("%d posted in a ring of %d", n, w.mask+1)
		}
		for i := range w.posted() {
			if len(w.slot(i)) != 256 {
				t.Error("a slot of another size")
			}
		}
		c := CQ{session: &Session{}, ring: r, cqe: r.mask}
		c.arm.open(a, log2, 0)
		for range 50 {
			c.look()
			if c.prod-c.seen > c.cqe {
				t.Fatalf("%d completions held in a ring of %d", c.prod-c.seen, c.cqe)
			}
			if c.prod-c.seen < c.cqe {
				c.push(&completion{})
			}
		}
	})
}

// TestSendOperations asks for every operation on every service: the ring's reader and the
// requester must refuse the same ones, those that rxe refuses.
func TestSendOperations(t *testing.T) {
	has := map[ib.Service][]transport.WROp{
		ib.RC: {transport.WRWrite, transport.WRWriteImm, transport.WRSend, transport.WRSendImm, transport.WRRead,
			transport.WRCmpSwap, transport.WRFetchAdd, transport.WRLocalInv, transport.WRBindMW, transport.WRSendInv,
			transport.WRFlush, transport.WRAtomicWrite},
		ib.UC: {transport.WRWrite, transport.WRWriteImm, transport.WRSend, transport.WRSendImm, transport.WRBindMW},
		ib.UD: {transport.WRSend, transport.WRSendImm},
	}
	for typ, ops := range has {
		for op := range 300 {
			slot := aligned(256)
			binary.NativeEndian.PutUint32(slot[12:], uint32(op))
			var w transport.SendWQE
			parseSend(slot, typ, 4, &w)
			want := op < 256 && slices.Contains(ops, transport.WROp(op))
			if got := w.Bad == transport.Success; got != want {
				t.Errorf("operation %d on service %d: taken %v, want %v", op, typ, got, want)
			}
			if op < 256 && transport.WROp(op).Valid(typ) != want {
				t.Errorf("operation %d on service %d: the requester says %v, want %v", op, typ, !want, want)
			}
		}
	}
}

// TestInlineOperations posts every operation with its data inline: what brings data back
// needs a place for it.
func TestInlineOperations(t *testing.T) {
	for op, want := range map[transport.WROp]transport.Status{
		transport.WRWrite: transport.Success, transport.WRSend: transport.Success, transport.WRSendInv: transport.Success,
		transport.WRAtomicWrite: transport.Success, transport.WRFlush: transport.Success, transport.WRRead: transport.LocQPOpErr,
		transport.WRCmpSwap: transport.LocQPOpErr, transport.WRFetchAdd: transport.LocQPOpErr,
	} {
		slot := aligned(256)
		binary.NativeEndian.PutUint32(slot[12:], uint32(op))
		binary.NativeEndian.PutUint32(slot[16:], transport.FlagInline)
		binary.NativeEndian.PutUint32(slot[abi.SendDMALength:], 8)
		var w transport.SendWQE
		if parseSend(slot, ib.RC, 4, &w); w.Bad != want {
			t.Errorf("operation %d inline: status %d, want %d", op, w.Bad, want)
		}
	}
}
