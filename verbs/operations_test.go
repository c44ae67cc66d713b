package verbs_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/testkit/testdaemon"
	"vrdma.dev/vrdma/verbs"
)

// TestAtomicWrite writes eight bytes atomically.
func TestAtomicWrite(t *testing.T) {
	a, b := pair(t, verbs.QPConfig{})
	wr := verbs.SendWR{Op: verbs.AtomicWrite, Swap: 0x1122334455667788, RemoteAddr: b.mr.Addr(8), RKey: b.mr.RKey()}
	a.post(wr)
	if wc := a.next(); wc.Op != verbs.WCAtomicWrite {
		t.Errorf("completed as %d", wc.Op)
	}
	if got := b.mr.Uint64(8).Load(); got != wr.Swap {
		t.Errorf("wrote %#x", got)
	}
	wr.SGL = []verbs.SGE{a.mr.Slice(0, 8)}
	if err := a.qp.PostSend(&wr); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("an atomic write out of memory: %v", err)
	}
}

// TestFlush flushes a range and a whole region.
func TestFlush(t *testing.T) {
	socket := testdaemon.Start(t)
	a, b := newEnd(t, socket, verbs.QPConfig{}), newEnd(t, socket, verbs.QPConfig{})
	to, from := must[verbs.Address](t)(b.qp.Address()), must[verbs.Address](t)(a.qp.Address())
	for _, x := range []struct {
		e    *end
		peer verbs.Address
	}{{a, to}, {b, from}} {
		attr := verbs.Attr{Access: verbs.RemoteAll | verbs.FlushGlobal, Remote: x.peer, SendPSN: must[verbs.Address](t)(x.e.qp.Address()).PSN,
			MaxReads: 4, PeerReads: 4, Timeout: 14, Retry: 7, RNRRetry: 7, RNRTimer: 12}
		for _, s := range []verbs.State{verbs.Init, verbs.RTR, verbs.RTS} { // one by one
			if err := x.e.qp.Modify(s, attr); err != nil {
				t.Fatal(err)
			}
			if got := must[verbs.State](t)(x.e.qp.State()); got != s {
				t.Errorf("the state is %v, want %v", got, s)
			}
		}
	}
	mr := must[*verbs.MR](t)(b.pd.Alloc(4096, verbs.RemoteAll|verbs.FlushGlobal))
	defer mr.Close()
	a.post(verbs.SendWR{Op: verbs.Write, SGL: []verbs.SGE{a.mr.Slice(0, 64)}, RemoteAddr: mr.Addr(0), RKey: mr.RKey()})
	a.next()
	for _, n := range []uint64{64, 0} {
		a.post(verbs.SendWR{Op: verbs.Flush, Access: verbs.FlushGlobal, Length: n, RemoteAddr: mr.Addr(0), RKey: mr.RKey()})
		if wc := a.next(); wc.Op != verbs.WCFlush {
			t.Errorf("completed as %d", wc.Op)
		}
	}
	if err := a.qp.PostSend(&verbs.SendWR{Op: verbs.Flush}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a flush of nothing: %v", err)
	}
}

// TestInvalidate invalidates a window: by the peer's message, and by the owner.
func TestInvalidate(t *testing.T) {
	for _, how := range []string{"the peer", "the owner"} {
		t.Run(how, func(t *testing.T) {
			a, b := pair(t, verbs.QPConfig{})
			under := must[*verbs.MR](t)(b.pd.Alloc(4096, verbs.LocalWrite|verbs.BindWindows))
			mw := must[*verbs.MW](t)(b.pd.AllocMW())
			key := mw.NextRKey()
			b.post(verbs.SendWR{Op: verbs.BindWindow, Window: mw, MR: under, RemoteAddr: under.Addr(0), Length: 64, Access: verbs.RemoteWrite})
			b.next()
			if how == "the peer" {
				b.recv(1, 0, 64)
				a.post(verbs.SendWR{Op: verbs.SendInvalidate, Imm: key, SGL: []verbs.SGE{a.mr.Slice(0, 8)}})
				a.next()
				if wc := b.next(); wc.Flags&verbs.WithInvalidate == 0 || wc.Imm != key {
					t.Errorf("received %+v, want the key %#x", wc, key)
				}
			} else {
				b.post(verbs.SendWR{Op: verbs.LocalInvalidate, Imm: key})
				if wc := b.next(); wc.Op != verbs.WCLocalInvalidate {
					t.Errorf("completed %+v", wc)
				}
			}
			a.post(verbs.SendWR{Op: verbs.Write, SGL: []verbs.SGE{a.mr.Slice(0, 8)}, RemoteAddr: under.Addr(0), RKey: key})
			if wc := a.any(); wc.Status != verbs.RemoteAccessError {
				t.Errorf("wrote through a window that is gone: %v", wc.Status)
			}
		})
	}
}

// TestFence makes a write wait for an earlier read, whose data it sends.
func TestFence(t *testing.T) {
	a, b := pair(t, verbs.QPConfig{})
	for i := range 100 {
		b.mr.Uint64(0).Store(uint64(i))
		wrs := []verbs.SendWR{
			{Op: verbs.Read, SGL: []verbs.SGE{a.mr.Slice(0, 8)}, RemoteAddr: b.mr.Addr(0), RKey: b.mr.RKey()},
			{Op: verbs.Write, Flags: verbs.Signaled | verbs.Fence, SGL: []verbs.SGE{a.mr.Slice(0, 8)}, RemoteAddr: b.mr.Addr(64), RKey: b.mr.RKey()},
		}
		if n, err := a.qp.PostSends(wrs); n != 2 || err != nil {
			t.Fatal(n, err)
		}
		a.next()
		if got := b.mr.Uint64(64).Load(); got != uint64(i) {
			t.Fatalf("round %d: the write overtook the read: %d", i, got)
		}
	}
}

// TestSolicited checks that only solicited completions wake a goroutine that waits for them.
func TestSolicited(t *testing.T) {
	a, b := pair(t, verbs.QPConfig{})
	b.recv(1, 0, 8)
	b.recv(2, 8, 8)
	if err := b.cq.Arm(true); err != nil {
		t.Fatal(err)
	}
	a.post(verbs.SendWR{Op: verbs.Send, SGL: []verbs.SGE{a.mr.Slice(0, 8)}})
	a.next()
	if wc := b.next(); wc.ID != 1 {
		t.Errorf("received %+v", wc)
	}
	select {
	case <-b.cq.Wake():
		t.Error("woken by a message that was not solicited")
	default:
	}
	a.post(verbs.SendWR{Op: verbs.Send, Flags: verbs.Solicited, SGL: []verbs.SGE{a.mr.Slice(0, 8)}})
	if err := b.cq.WaitSolicited(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if wc := b.next(); wc.ID != 2 {
		t.Errorf("received %+v", wc)
	}
}

// TestCompletions iterates over the completions.
func TestCompletions(t *testing.T) {
	a, b := pair(t, verbs.QPConfig{})
	want := []uint64{1, 2, 3, 4, 5}
	for _, id := range want {
		a.post(verbs.SendWR{ID: id, Op: verbs.Write, SGL: []verbs.SGE{a.mr.Slice(0, 8)}, RemoteAddr: b.mr.Addr(0), RKey: b.mr.RKey()})
	}
	var got []uint64
	for end := time.Now().Add(patience); len(got) < len(want) && time.Now().Before(end); {
		for wc, err := range a.cq.Completions() {
			if err != nil || wc.Err() != nil {
				t.Fatal(err, wc.Err())
			}
			if got = append(got, wc.ID); len(got) == 3 {
				break // the others stay
			}
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestFilesAreRegistered registers mappings of a file and of a memfd, which the daemon copies.
func TestFilesAreRegistered(t *testing.T) {
	a, b := pair(t, verbs.QPConfig{})
	file, err := os.Create(t.TempDir() + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for name, fd := range map[string]int{"file": int(file.Fd()), "memfd": fd} {
		if err := unix.Ftruncate(fd, 8192); err != nil {
			t.Fatal(err)
		}
		mem, err := unix.Mmap(fd, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		mr := must[*verbs.MR](t)(b.pd.Register(mem, verbs.RemoteAll))
		text := "into a " + name
		copy(a.mr.Bytes(), text)
		a.post(verbs.SendWR{Op: verbs.Write, SGL: []verbs.SGE{a.mr.Slice(0, len(text))}, RemoteAddr: mr.Addr(4090), RKey: mr.RKey()})
		a.next()
		got := make([]byte, len(text))
		if _, err := unix.Pread(fd, got, 4090); err != nil || string(got) != text {
			t.Errorf("the %s has %q: %v", name, got, err)
		}
		clear(a.mr.Bytes()[:64])
		a.post(verbs.SendWR{Op: verbs.Read, SGL: []verbs.SGE{a.mr.Slice(0, len(text))}, RemoteAddr: mr.Addr(4090), RKey: mr.RKey()})
		a.next()
		if got := string(a.mr.Bytes()[:len(text)]); got != text {
			t.Errorf("read %q from the %s", got, name)
		}
		if err := mr.Close(); err != nil {
			t.Error(err)
		}
		if err := unix.Munmap(mem); err != nil {
			t.Error(err)
		}
	}
}

// TestHeapIsRegistered registers memory of Go's heap, which the daemon copies.
func TestHeapIsRegistered(t *testing.T) {
	a, b := pair(t, verbs.QPConfig{})
	heap := make([]byte, 100)
	mr := must[*verbs.MR](t)(b.pd.Register(heap, verbs.RemoteAll))
	copy(a.mr.Bytes(), "heap")
	a.post(verbs.SendWR{Op: verbs.Write, SGL: []verbs.SGE{a.mr.Slice(0, 4)}, RemoteAddr: mr.Addr(50), RKey: mr.RKey()})
	a.next()
	if got := string(heap[50:54]); got != "heap" {
		t.Errorf("got %q", got)
	}
	if err := mr.Close(); err != nil {
		t.Error(err)
	}
}

// TestEventOfQueuePair checks that an operation without rights raises an event at its target.
func TestEventOfQueuePair(t *testing.T) {
	a, b := pair(t, verbs.QPConfig{})
	a.post(verbs.SendWR{Op: verbs.Write, SGL: []verbs.SGE{a.mr.Slice(0, 8)}, RemoteAddr: b.mr.Addr(0), RKey: b.mr.RKey() ^ 0x100})
	a.any()
	for e, err := range b.dev.Events(testContext(t)) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Type == verbs.EventQPAccess && e.QP == b.qp {
			break
		}
		if e.Type != verbs.EventEstablished {
			t.Errorf("another event: %v", e.Type)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range b.dev.Events(ctx) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("after the context's end: %v", err)
		}
	}
}

// TestWords checks that a word must be aligned and lie in the memory.
func TestWords(t *testing.T) {
	a := newEnd(t, testdaemon.Start(t), verbs.QPConfig{})
	for name, f := range map[string]func(){
		"not aligned": func() { a.mr.Uint64(4) },
		"beyond":      func() { a.mr.Uint32(1 << 20) },
		"before":      func() { a.mr.Uint32(-4) },
		"a slice":     func() { a.mr.Slice(1<<20-4, 8) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}
