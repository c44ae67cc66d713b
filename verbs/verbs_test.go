package verbs_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/testkit/testdaemon"
	"vrdma.dev/vrdma/verbs"
)

func TestDevice(t *testing.T) {
	dev := openDevice(t, testdaemon.Start(t))
	if dev.Name() != "rxe0" {
		t.Errorf("the device is %q", dev.Name())
	}
	a := must[verbs.Attributes](t)(dev.Query())
	if a.MaxQPs == 0 || a.MaxSGE == 0 || !a.Atomics || a.PhysicalPorts != 1 {
		t.Errorf("attributes: %+v", a)
	}
	p := must[verbs.Port](t)(dev.Port())
	if !p.Active || p.MTU < 256 {
		t.Errorf("port: %+v", p)
	}
	g := must[[]verbs.Entry](t)(dev.GIDs())
	if len(g) != 2 || g[0].GID.String() != "127.0.0.1" || g[1].GID.String() != "::1" {
		t.Errorf("addresses: %v", g)
	}
}

func TestNoDaemon(t *testing.T) {
	none := t.TempDir() + "/none.sock"
	check := func(err error) {
		t.Helper()
		var e *verbs.Error
		if !errors.As(err, &e) || !errors.Is(err, syscall.ENOENT) || !strings.Contains(e.Advice, "vrdma daemon --socket "+none) {
			t.Errorf("opened nothing: %v", err)
		}
	}
	_, err := verbs.Options{Socket: none}.Open(t.Context())
	check(err)
	t.Setenv("VRDMA_SOCKET", none)
	_, err = verbs.Open(t.Context())
	check(err)
}

// TestSilentDaemon checks a socket whose listener is not a daemon.
func TestSilentDaemon(t *testing.T) {
	socket := t.TempDir() + "/s"
	l, err := net.Listen("unixpacket", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := (verbs.Options{Socket: socket}).Open(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nobody answers: %v", err)
	}
}

func TestSendReceive(t *testing.T) {
	for _, typ := range []verbs.Type{verbs.RC, verbs.UC} {
		t.Run(typ.String(), func(t *testing.T) {
			a, b := pair(t, verbs.QPConfig{Type: typ, MaxInline: 64})
			b.recv(7, 0, 4096)
			copy(a.mr.Bytes(), "hello")
			a.post(verbs.SendWR{ID: 1, Op: verbs.SendImm, Imm: 0x01020304, SGL: []verbs.SGE{a.mr.Slice(0, 5)}})
			if wc := a.next(); wc.ID != 1 || wc.Op != verbs.WCSend {
				t.Errorf("sent: %+v", wc)
			}
			wc := b.next()
			if wc.ID != 7 || wc.Op != verbs.WCRecv || wc.Bytes != 5 || wc.Flags&verbs.WithImm == 0 || wc.Imm != 0x01020304 || wc.QPN != b.qp.QPN() {
				t.Errorf("received: %+v", wc)
			}
			if got := string(b.mr.Bytes()[:5]); got != "hello" {
				t.Errorf("received %q", got)
			}
			b.recv(8, 100, 64)
			a.post(verbs.SendWR{ID: 2, Op: verbs.Send, Data: []byte("inline")})
			a.next()
			if wc := b.next(); wc.Bytes != 6 || string(b.mr.Bytes()[100:106]) != "inline" {
				t.Errorf("inline: %+v, %q", wc, b.mr.Bytes()[100:106])
			}
		})
	}
}

func TestOneSided(t *testing.T) {
	a, b := pair(t, verbs.QPConfig{MaxSendSGE: 2})
	text := bytes.Repeat([]byte("0123456789abcdef"), 4096)
	copy(a.mr.Bytes(), text)
	a.post(verbs.SendWR{Op: verbs.Write, SGL: []verbs.SGE{a.mr.Slice(0, 10), a.mr.Slice(10, len(text)-10)}, RemoteAddr: b.mr.Addr(64), RKey: b.mr.RKey()})
	a.next()
	if !bytes.Equal(b.mr.Bytes()[64:64+len(text)], text) {
		t.Error("the write went elsewhere")
	}
	a.post(verbs.SendWR{Op: verbs.Read, SGL: []verbs.SGE{a.mr.Slice(1<<19, len(text))}, RemoteAddr: b.mr.Addr(64), RKey: b.mr.RKey()})
	if wc := a.next(); wc.Op != verbs.WCRead {
		t.Errorf("read: %+v", wc)
	}
	if !bytes.Equal(a.mr.Bytes()[1<<19:1<<19+len(text)], text) {
		t.Error("read something else")
	}
	b.recv(3, 0, 8)
	a.post(verbs.SendWR{Op: verbs.WriteImm, Imm: 9, RemoteAddr: b.mr.Addr(0), RKey: b.mr.RKey()})
	a.next()
	if wc := b.next(); wc.Op != verbs.WCRecvImm || wc.Imm != 9 {
		t.Errorf("write with immediate: %+v", wc)
	}
}

func TestAtomics(t *testing.T) {
	a, b := pair(t, verbs.QPConfig{})
	at := b.mr.Bytes()[:8]
	binary.NativeEndian.PutUint64(at, 40)
	do := func(wr verbs.SendWR) uint64 {
		t.Helper()
		wr.SGL = []verbs.SGE{a.mr.Slice(0, 8)}
		wr.RemoteAddr, wr.RKey = b.mr.Addr(0), b.mr.RKey()
		a.post(wr)
		a.next()
		return binary.NativeEndian.Uint64(a.mr.Bytes())
	}
	if got := do(verbs.SendWR{Op: verbs.FetchAdd, Compare: 2}); got != 40 {
		t.Errorf("fetched %d", got)
	}
	if got := do(verbs.SendWR{Op: verbs.CompareSwap, Compare: 42, Swap: 7}); got != 42 {
		t.Errorf("compared with %d", got)
	}
	if got := binary.NativeEndian.Uint64(at); got != 7 {
		t.Errorf("swapped in %d", got)
	}
}

func TestDatagrams(t *testing.T) {
	a, b := pairUD(t)
	ah := must[*verbs.AH](t)(a.pd.CreateAH(must[[]verbs.Entry](t)(b.dev.GIDs())[0].GID, verbs.GID{}))
	defer ah.Close()
	b.recv(1, 0, 2048)
	copy(a.mr.Bytes(), "datagram")
	a.post(verbs.SendWR{Op: verbs.Send, SGL: []verbs.SGE{a.mr.Slice(0, 8)}, AH: ah, RemoteQPN: b.qp.QPN(), QKey: 0x1111})
	a.next()
	wc := b.next()
	if wc.Bytes != 48 || wc.SrcQP != a.qp.QPN() || wc.Flags&verbs.WithGRH == 0 || string(b.mr.Bytes()[40:48]) != "datagram" {
		t.Errorf("received %+v, %q", wc, b.mr.Bytes()[40:48])
	}
}

func pairUD(t *testing.T) (a, b *end) {
	t.Helper()
	return pairUDAt(t, testdaemon.Start(t))
}

func pairUDAt(t *testing.T, socket string) (a, b *end) {
	t.Helper()
	a, b = newEnd(t, socket, verbs.QPConfig{Type: verbs.UD}), newEnd(t, socket, verbs.QPConfig{Type: verbs.UD})
	for _, e := range []*end{a, b} {
		if err := e.qp.Start(0x1111); err != nil {
			t.Fatal(err)
		}
	}
	return a, b
}

func TestMulticast(t *testing.T) {
	a, b := pairUD(t)
	group := verbs.GID{0xff, 0x0e, 15: 9}
	if err := b.qp.JoinGroup(group); err != nil {
		t.Fatal(err)
	}
	ah := must[*verbs.AH](t)(a.pd.CreateAH(group, verbs.GID{}))
	b.recv(1, 0, 2048)
	a.post(verbs.SendWR{Op: verbs.Send, SGL: []verbs.SGE{a.mr.Slice(0, 16)}, AH: ah, RemoteQPN: 0xffffff, QKey: 0x1111})
	a.next()
	if wc := b.next(); wc.Bytes != 56 {
		t.Errorf("received %+v", wc)
	}
	if err := b.qp.LeaveGroup(group); err != nil {
		t.Error(err)
	}
}

func TestSharedReceiveQueue(t *testing.T) {
	socket := testdaemon.Start(t)
	a, b := newEnd(t, socket, verbs.QPConfig{}), newEnd(t, socket, verbs.QPConfig{})
	srq := must[*verbs.SRQ](t)(b.pd.CreateSRQ(16, 0))
	qp := must[*verbs.QP](t)(b.pd.CreateQP(verbs.QPConfig{SendCQ: b.cq, SRQ: srq}))
	connect(t, a.qp, qp)
	if err := qp.PostRecv(&verbs.RecvWR{}); err == nil {
		t.Error("a receive was posted beside the shared queue")
	}
	if err := srq.PostRecv(&verbs.RecvWR{ID: 5, SGL: []verbs.SGE{b.mr.Slice(0, 64)}}); err != nil {
		t.Fatal(err)
	}
	if err := srq.SetLimit(1); err != nil {
		t.Fatal(err)
	}
	a.post(verbs.SendWR{Op: verbs.Send, SGL: []verbs.SGE{a.mr.Slice(0, 8)}})
	if wc := b.next(); wc.ID != 5 {
		t.Errorf("received %+v", wc)
	}
	for e, err := range b.dev.Events(testContext(t)) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Type == verbs.EventSRQLimit && e.SRQ == srq {
			break
		}
	}
	for _, c := range []interface{ Close() error }{qp, srq} {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestMemoryWindow(t *testing.T) {
	a, b := pair(t, verbs.QPConfig{})
	under := must[*verbs.MR](t)(b.pd.Alloc(4096, verbs.LocalWrite|verbs.BindWindows))
	mw := must[*verbs.MW](t)(b.pd.AllocMW())
	key := mw.NextRKey()
	b.post(verbs.SendWR{Op: verbs.BindWindow, Window: mw, MR: under, RemoteAddr: under.Addr(0), Length: 64, Access: verbs.RemoteWrite})
	b.next()
	copy(a.mr.Bytes(), "through the window")
	a.post(verbs.SendWR{Op: verbs.Write, SGL: []verbs.SGE{a.mr.Slice(0, 18)}, RemoteAddr: under.Addr(0), RKey: key})
	a.next()
	if got := string(under.Bytes()[:18]); got != "through the window" {
		t.Errorf("got %q", got)
	}
	a.post(verbs.SendWR{Op: verbs.Write, SGL: []verbs.SGE{a.mr.Slice(0, 100)}, RemoteAddr: under.Addr(0), RKey: key})
	if wc := a.any(); wc.Status != verbs.RemoteAccessError {
		t.Errorf("beyond the window: %v", wc.Status)
	}
}

// TestForeignMemory registers a mapping of the program.
func TestForeignMemory(t *testing.T) {
	a, b := pair(t, verbs.QPConfig{})
	mem, err := unix.Mmap(-1, 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	mr := must[*verbs.MR](t)(b.pd.Register(mem[100:], verbs.RemoteAll))
	defer mr.Close()
	copy(a.mr.Bytes(), "by copying")
	a.post(verbs.SendWR{Op: verbs.Write, SGL: []verbs.SGE{a.mr.Slice(0, 10)}, RemoteAddr: mr.Addr(5000), RKey: mr.RKey()})
	a.next()
	if got := string(mem[5100:5110]); got != "by copying" {
		t.Errorf("got %q", got)
	}
}

func TestErrors(t *testing.T) {
	a, b := pair(t, verbs.QPConfig{MaxInline: 32})
	for name, wr := range map[string]verbs.SendWR{
		"inline too long": {Op: verbs.Send, Data: make([]byte, 4096)},
		"both":            {Op: verbs.Send, Data: []byte("x"), SGL: []verbs.SGE{a.mr.Slice(0, 1)}},
		"list too long":   {Op: verbs.Send, SGL: make([]verbs.SGE, 100)},
		"no window":       {Op: verbs.BindWindow},
	} {
		if err := a.qp.PostSend(&wr); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", name, err)
		}
	}
	a.post(verbs.SendWR{ID: 3, Op: verbs.Write, SGL: []verbs.SGE{a.mr.Slice(0, 8)}, RemoteAddr: b.mr.Addr(0), RKey: b.mr.RKey() ^ 0x100})
	wc := a.any()
	if wc.ID != 3 || wc.Status != verbs.RemoteAccessError {
		t.Errorf("a wrong key: %+v", wc)
	}
	var s verbs.Status
	if !errors.As(wc.Err(), &s) || s != verbs.RemoteAccessError {
		t.Errorf("the error is %v", wc.Err())
	}
	if st := must[verbs.State](t)(a.qp.State()); st != verbs.Err {
		t.Errorf("the queue pair is in %v", st)
	}
	if _, err := a.pd.CreateQP(verbs.QPConfig{}); err == nil {
		t.Error("a queue pair without completion queue")
	}
	if err := a.cq.Close(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("closed a queue that is used: %v", err)
	}
	if err := a.qp.Close(); err != nil {
		t.Error(err)
	}
	if err := a.qp.PostSend(&verbs.SendWR{Op: verbs.Send}); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("posted to a closed queue pair: %v", err)
	}
}

// TestFullDevice fills a device's memory for queues. Unused pages of queues cost nothing.
func TestFullDevice(t *testing.T) {
	socket := testdaemon.Start(t)
	dev := openDevice(t, socket)
	const entries = 1<<19 - 1 // 32 MiB each, of the 4 GiB
	var list []*verbs.CQ
	for len(list) < 200 {
		cq, err := dev.CreateCQ(entries)
		if err == nil {
			list = append(list, cq)
			continue
		}
		if !errors.Is(err, syscall.ENOMEM) || !strings.Contains(err.Error(), "open the device again") {
			t.Fatalf("after %d queues: %v", len(list), err)
		}
		break
	}
	if n := len(list); n < 100 || n > 127 {
		t.Fatalf("%d queues of 32 MiB and a page", n)
	}
	if err := list[7].Close(); err != nil {
		t.Fatal(err)
	}
	must[*verbs.CQ](t)(dev.CreateCQ(entries))
	// Another device has its own memory for queues.
	must[*verbs.CQ](t)(openDevice(t, socket).CreateCQ(entries))
}

func TestFullQueue(t *testing.T) {
	socket := testdaemon.Start(t)
	a := newEnd(t, socket, verbs.QPConfig{MaxRecv: 4})
	var err error
	for range 100 {
		if err = a.qp.PostRecv(&verbs.RecvWR{SGL: []verbs.SGE{a.mr.Slice(0, 8)}}); err != nil {
			break
		}
	}
	if !errors.Is(err, verbs.ErrFull) {
		t.Errorf("a hundred receives: %v", err)
	}
}

func TestNotConnected(t *testing.T) {
	a := newEnd(t, testdaemon.Start(t), verbs.QPConfig{})
	if err := a.qp.PostSend(&verbs.SendWR{Op: verbs.Send, SGL: []verbs.SGE{a.mr.Slice(0, 8)}}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("sent without a peer: %v", err)
	}
}

func TestWaitIsCancelled(t *testing.T) {
	a, _ := pair(t, verbs.QPConfig{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.cq.Wait(ctx) }()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("waited: %v", err)
	}
}

func TestResize(t *testing.T) {
	a, b := pair(t, verbs.QPConfig{})
	for range 3 {
		a.post(verbs.SendWR{Op: verbs.Write, SGL: []verbs.SGE{a.mr.Slice(0, 8)}, RemoteAddr: b.mr.Addr(0), RKey: b.mr.RKey()})
	}
	if err := a.cq.Resize(1000); err != nil {
		t.Fatal(err)
	}
	if a.cq.Size() < 1000 {
		t.Errorf("its size is %d", a.cq.Size())
	}
	for range 3 {
		a.next()
	}
}

func TestDaemonEnds(t *testing.T) {
	socket, stop := testdaemon.Run(t)
	a := newEnd(t, socket, verbs.QPConfig{})
	done := make(chan error, 1)
	go func() { done <- a.cq.Wait(testContext(t)) }()
	stop()
	if err := <-done; !errors.Is(err, verbs.ErrGone) {
		t.Errorf("waited: %v", err)
	}
	var wc [1]verbs.WC
	if _, err := a.cq.Poll(wc[:]); !errors.Is(err, verbs.ErrGone) {
		t.Errorf("polled: %v", err)
	}
	if _, err := a.dev.AllocPD(); !errors.Is(err, verbs.ErrGone) {
		t.Errorf("made a domain: %v", err)
	}
	if err := a.dev.Close(); err != nil {
		t.Logf("close: %v", err)
	}
}

// TestArenasAreUnmapped checks that a device's mappings are removed when the device is collected.
func TestArenasAreUnmapped(t *testing.T) {
	socket := testdaemon.Spawn(t)
	for range 20 {
		dev := must[*verbs.Device](t)(verbs.Options{Socket: socket}.Open(t.Context()))
		must[*verbs.CQ](t)(dev.CreateCQ(16))
		if err := dev.Close(); err != nil {
			t.Fatal(err)
		}
	}
	arenas := func() int {
		maps, _ := os.ReadFile("/proc/self/maps")
		return bytes.Count(maps, []byte("vrdma-uverbs"))
	}
	for end := time.Now().Add(patience); arenas() > 2; time.Sleep(10 * time.Millisecond) {
		if runtime.GC(); time.Now().After(end) {
			t.Fatalf("%d arenas are still mapped", arenas())
		}
	}
}

func FuzzAddress(f *testing.F) {
	f.Add("00000000000000000000ffff7f000001:000011:abcdef")
	f.Add("::")
	f.Fuzz(func(t *testing.T, s string) {
		var a verbs.Address
		if a.UnmarshalText([]byte(s)) != nil {
			return
		}
		text, err := a.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		var b verbs.Address
		if err := b.UnmarshalText(text); err != nil || a != b {
			t.Errorf("%q became %v, then %v: %v", s, a, b, err)
		}
	})
}
