package engine

import (
	"bytes"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/device/transport"
)

const (
	opWrite = uint32(transport.WRWrite)
	opSend  = uint32(transport.WRSend)
	opRead  = uint32(transport.WRRead)
	rc      = 2
	signal  = transport.FlagSignaled
)

func pattern(b []byte, seed byte) {
	for i := range b {
		b[i] = seed + byte(i) + byte(i>>8)
	}
}

func pair(t testing.TB) (*testQP, *testQP) {
	e := newEngine(t)
	a, b := newClient(t, e).newQP(rc), newClient(t, e).newQP(rc)
	connect(a, b)
	return a, b
}

func TestWriteSendRead(t *testing.T) {
	a, b := pair(t)
	for _, n := range []uint32{0, 1, 64, 4096, 4097, 300000, 1 << 20} {
		pattern(a.c.mem[:n], byte(n))
		clear(b.c.mem[:3<<20])
		a.post(wr{op: opWrite, flags: signal, n: n, remote: b.c.base + 100, rkey: b.mr.RKey, id: uint64(n)})
		if w := a.wait(); w.status != 0 || w.id != uint64(n) {
			t.Fatalf("write of %d: %+v", n, w)
		}
		if !bytes.Equal(b.c.mem[100:100+n], a.c.mem[:n]) {
			t.Fatalf("write of %d: bytes differ", n)
		}
		b.recv(2<<20+1, max(n, 1))
		a.post(wr{op: opSend, flags: signal, n: n})
		if w := b.wait(); w.status != 0 || w.length != n || w.opcode != 128 {
			t.Fatalf("receive of %d: %+v", n, w)
		}
		if w := a.wait(); w.status != 0 {
			t.Fatalf("send of %d: %+v", n, w)
		}
		if !bytes.Equal(b.c.mem[2<<20+1:2<<20+1+n], a.c.mem[:n]) {
			t.Fatalf("send of %d: bytes differ", n)
		}
		a.post(wr{op: opRead, flags: signal, off: 4 << 20, n: n, remote: b.c.base + 100, rkey: b.mr.RKey})
		if w := a.wait(); w.status != 0 {
			t.Fatalf("read of %d: %+v", n, w)
		}
		if !bytes.Equal(a.c.mem[4<<20:4<<20+n], a.c.mem[:n]) {
			t.Fatalf("read of %d: bytes differ", n)
		}
	}
}

func TestSelfConnected(t *testing.T) {
	e := newEngine(t)
	a := newClient(t, e).newQP(rc)
	connect(a, a)
	pattern(a.c.mem[:5000], 3)
	a.recv(1<<20, 5000)
	a.post(wr{op: opSend, flags: signal, n: 5000})
	for range 2 {
		if w := a.wait(); w.status != 0 {
			t.Fatalf("%+v", w)
		}
	}
	if !bytes.Equal(a.c.mem[1<<20:1<<20+5000], a.c.mem[:5000]) {
		t.Error("bytes differ")
	}
}

func TestReceiverNotReady(t *testing.T) {
	a, b := pair(t)
	a.post(wr{op: opSend, flags: signal, n: 100})
	if w, ok := a.try(); ok {
		t.Fatalf("completed without a receive: %+v", w)
	}
	time.Sleep(5 * time.Millisecond)
	b.recv(0, 100)
	if w := b.wait(); w.status != 0 {
		t.Errorf("receive: %+v", w)
	}
	if w := a.wait(); w.status != 0 {
		t.Errorf("send: %+v", w)
	}
}

func TestRemoteAccessError(t *testing.T) {
	a, b := pair(t)
	a.post(wr{op: opWrite, n: 100, remote: b.c.base + clientMemory - 50, rkey: b.mr.RKey, id: 1})
	a.post(wr{op: opWrite, n: 100, remote: b.c.base, rkey: b.mr.RKey, id: 2})
	if w := a.wait(); w.status != uint32(transport.RemAccessErr) || w.id != 1 {
		t.Errorf("got %+v, want a remote access error of 1", w)
	}
	if w := a.wait(); w.status != uint32(transport.WRFlushErr) || w.id != 2 {
		t.Errorf("got %+v, want 2 flushed", w)
	}
	// Receives posted afterwards are flushed although nobody rings.
	a.recv(0, 10)
	if w := a.wait(); w.status != uint32(transport.WRFlushErr) {
		t.Errorf("got %+v, want the receive flushed", w)
	}
}

func TestPeerGone(t *testing.T) {
	a, b := pair(t)
	b.c.do(func() error {
		b.c.s.Close()
		return nil
	})
	a.post(wr{op: opWrite, n: 100, remote: b.c.base, rkey: b.mr.RKey})
	if w := a.wait(); w.status != uint32(transport.RetryExcErr) {
		t.Errorf("got %+v, want retries exceeded", w)
	}
}

func BenchmarkWrite8(b *testing.B) {
	a, p := pair(b)
	b.ReportAllocs()
	done, sent := 0, 0
	for done < b.N {
		for sent-done < 128 && sent < b.N {
			for range min(16, b.N-sent) {
				a.write(wr{op: opWrite, flags: signal, n: 8, remote: p.c.base, rkey: p.mr.RKey})
				sent++
			}
			a.ring()
		}
		if _, ok := a.try(); ok {
			done++
		}
	}
}

func BenchmarkWrite64K(b *testing.B) {
	a, p := pair(b)
	b.SetBytes(65536)
	done, sent := 0, 0
	for done < b.N {
		for sent-done < 64 && sent < b.N {
			a.post(wr{op: opWrite, flags: signal, n: 65536, remote: p.c.base, rkey: p.mr.RKey})
			sent++
		}
		if _, ok := a.try(); ok {
			done++
		}
	}
}

func TestDataPathDoesNotAllocate(t *testing.T) {
	a, b := pair(t)
	work := func() {
		for range 100 {
			b.recv(0, 64)
			a.write(wr{op: opSend, flags: signal, n: 64})
			a.write(wr{op: opWrite, flags: signal, n: 65536, remote: b.c.base, rkey: b.mr.RKey})
			a.write(wr{op: opRead, flags: signal, off: 1 << 20, n: 8192, remote: b.c.base, rkey: b.mr.RKey})
		}
		a.ring()
		for range 300 {
			a.wait()
		}
		for range 100 {
			b.wait()
		}
	}
	work() // queues grow to what they need
	if n := testing.AllocsPerRun(20, work); n > 0 {
		t.Errorf("%v allocations for 300 messages, want 0", n)
	}
}
