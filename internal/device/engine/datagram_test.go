package engine

import (
	"bytes"
	"encoding/binary"
	"testing"

	"vrdma.dev/vrdma/internal/device/nic"
)

// datagrams takes a UD queue pair to RTS and gives it an address handle for its own host.
func (q *testQP) datagrams(qkey uint32) (ah uint32) {
	q.c.t.Helper()
	q.c.do(func() (err error) {
		s, h := q.c.s, q.info.Handle
		const state, pkey, port, key, psn = 1 << 0, 1 << 4, 1 << 5, 1 << 6, 1 << 16
		if err := s.ModifyQP(h, state|pkey|port|key, &nic.QPAttr{State: 1, PortNum: 1, QKey: qkey}); err != nil {
			return err
		}
		if err := s.ModifyQP(h, state, &nic.QPAttr{State: 2}); err != nil {
			return err
		}
		if err := s.ModifyQP(h, state|psn, &nic.QPAttr{State: 3}); err != nil {
			return err
		}
		_, ah, err = s.CreateAH(q.pd, nic.AHAttr{DGID: q.c.gid, IsGlobal: true, PortNum: 1})
		return err
	})
	return ah
}

// datagram posts n bytes to the queue pair with number dst.
func (q *testQP) datagram(ah, dst, qkey, n uint32) {
	slot := q.sq.slot(q.posted)
	q.write(wr{op: opSend, flags: signal, n: n, remote: uint64(qkey)<<32 | uint64(dst)})
	binary.NativeEndian.PutUint32(slot[36:], ah)
	q.ring()
}

// TestDatagramMTU: a UD message is at most as long as the port's active MTU, to peers on this host and on others. A
// longer one is not sent, and no error is reported.
func TestDatagramMTU(t *testing.T) {
	const mtu, qkey = 1024, 0x1234
	n := nic.New(nic.Config{Name: "rxe0", MTU: 3, GIDs: []nic.GIDEntry{{GID: testGID, NetDev: "lo"}}})
	e, err := newWith(n, Options{})
	if err != nil {
		t.Fatal(err)
	}
	e.Start()
	t.Cleanup(e.Stop)
	const ud = 4
	a, b := newClient(t, e).newQP(ud), newClient(t, e).newQP(ud)
	ah := a.datagrams(qkey)
	b.datagrams(qkey)
	pattern(a.c.mem[:4096], 7)
	for range 2 {
		b.recv(0, 8192)
	}
	for _, n := range []uint32{mtu + 1, 4096, mtu} {
		a.datagram(ah, b.info.Num, qkey, n)
		if w := a.wait(); w.status != 0 {
			t.Fatalf("send of %d: %+v", n, w)
		}
	}
	if w := b.wait(); w.status != 0 || w.length != 40+mtu {
		t.Fatalf("received %+v, want the message of %d bytes alone", w, mtu)
	}
	if !bytes.Equal(b.c.mem[40:40+mtu], a.c.mem[:mtu]) {
		t.Error("bytes differ")
	}
	if w, ok := b.try(); ok {
		t.Errorf("received %+v as well", w)
	}
}
