package cm_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/testkit/leak"
	"vrdma.dev/vrdma/internal/testkit/testdaemon"
	"vrdma.dev/vrdma/verbs"
	"vrdma.dev/vrdma/verbs/cm"
)

func TestMain(m *testing.M) { os.Exit(testdaemon.Tests(m)) }

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// A side is a program with a device.
type side struct {
	t   testing.TB
	dev *verbs.Device
	pd  *verbs.PD
	cq  *verbs.CQ
	mr  *verbs.MR
	m   *cm.Manager
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func newSide(t testing.TB, socket string) *side {
	t.Helper()
	s := &side{t: t}
	s.dev = must[*verbs.Device](t)(verbs.Options{Socket: socket}.Open(testContext(t)))
	t.Cleanup(func() { s.dev.Close() })
	s.pd = must[*verbs.PD](t)(s.dev.AllocPD())
	s.cq = must[*verbs.CQ](t)(s.dev.CreateCQ(4096))
	s.mr = must[*verbs.MR](t)(s.pd.Alloc(1<<16, verbs.RemoteAll))
	s.m = must[*cm.Manager](t)(cm.New(s.dev))
	t.Cleanup(func() { s.m.Close() })
	return s
}

func (s *side) config(private string) cm.Config {
	return cm.Config{PD: s.pd, QP: verbs.QPConfig{SendCQ: s.cq, MaxSend: 16, MaxRecv: 16}, Private: []byte(private)}
}

// connection connects two sides.
func connection(t testing.TB, a, b *side, change func(*cm.Config)) (client, server *cm.Conn) {
	t.Helper()
	ctx := testContext(t)
	l := must[*cm.Listener](t)(b.m.Listen("127.0.0.1:0", nil))
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		r, err := l.Accept(ctx)
		if err == nil {
			c := b.config("welcome")
			if change != nil {
				change(&c)
			}
			server, err = r.Accept(ctx, c)
		}
		done <- err
	}()
	client, err := a.m.Dial(ctx, l.Addr().String(), a.config("hello"))
	if err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return client, server
}

func TestConnect(t *testing.T) {
	socket := testdaemon.Start(t)
	a, b := newSide(t, socket), newSide(t, socket)
	prepared := func(c *cm.Config) {
		c.Prepare = func(q *verbs.QP) error { return q.PostRecv(&verbs.RecvWR{ID: 4, SGL: []verbs.SGE{b.mr.Slice(0, 64)}}) }
	}
	client, server := connection(t, a, b, prepared)
	if got := string(client.Private()[:7]); got != "welcome" {
		t.Errorf("the answer says %q", got)
	}
	if got := string(server.Private()[:5]); got != "hello" {
		t.Errorf("the request says %q", got)
	}
	if client.RemoteAddr() != server.LocalAddr() || client.LocalAddr().Addr() != server.RemoteAddr().Addr() {
		t.Errorf("addresses: %v → %v, %v → %v", client.LocalAddr(), client.RemoteAddr(), server.LocalAddr(), server.RemoteAddr())
	}
	copy(a.mr.Bytes(), "over rdma_cm")
	if err := client.QP().PostSend(&verbs.SendWR{Op: verbs.Send, SGL: []verbs.SGE{a.mr.Slice(0, 12)}}); err != nil {
		t.Fatal(err)
	}
	var wc [1]verbs.WC
	if _, err := b.cq.Next(testContext(t), wc[:]); err != nil || wc[0].Err() != nil || wc[0].ID != 4 {
		t.Fatalf("received %+v: %v", wc[0], err)
	}
	if got := string(b.mr.Bytes()[:12]); got != "over rdma_cm" {
		t.Errorf("received %q", got)
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	select {
	case <-server.Done():
	case <-time.After(time.Minute):
		t.Error("the server was not told of the end")
	}
	if err := server.Close(); err != nil {
		t.Error(err)
	}
}

// TestFlush flushes a peer's memory over a connection: its queue pair has the right by default.
func TestFlush(t *testing.T) {
	socket := testdaemon.Start(t)
	a, b := newSide(t, socket), newSide(t, socket)
	client, server := connection(t, a, b, nil)
	defer server.Close()
	defer client.Close()
	for _, level := range []verbs.Access{verbs.FlushGlobal, verbs.FlushPersistent} {
		mr := must[*verbs.MR](t)(b.pd.Alloc(4096, verbs.RemoteAll|level))
		wr := verbs.SendWR{Op: verbs.Flush, Flags: verbs.Signaled, Access: level, Length: 4096, RemoteAddr: mr.Addr(0), RKey: mr.RKey()}
		if err := client.QP().PostSend(&wr); err != nil {
			t.Fatal(err)
		}
		var wc [1]verbs.WC
		if _, err := a.cq.Next(testContext(t), wc[:]); err != nil || wc[0].Err() != nil || wc[0].Op != verbs.WCFlush {
			t.Fatalf("FLUSH %#x: %+v: %v, %v", level, wc[0], wc[0].Err(), err)
		}
	}
}

func TestReject(t *testing.T) {
	socket := testdaemon.Start(t)
	a, b := newSide(t, socket), newSide(t, socket)
	ctx := testContext(t)
	l := must[*cm.Listener](t)(b.m.Listen("127.0.0.1:0", nil))
	go func() {
		if r, err := l.Accept(ctx); err == nil {
			r.Reject([]byte("not you"))
		}
	}()
	_, err := a.m.Dial(ctx, l.Addr().String(), a.config(""))
	var rejected *cm.RejectedError
	if !errors.As(err, &rejected) || rejected.Reason != 28 || string(rejected.PrivateData[:7]) != "not you" {
		t.Errorf("rejected: %v, %+v", err, rejected)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := a.m.Dial(ctx, l.Addr().String(), a.config("")); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("nobody listens: %v", err)
	}
	if _, err := l.Accept(ctx); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("accepted at a closed listener: %v", err)
	}
}

func TestDatagram(t *testing.T) {
	socket := testdaemon.Start(t)
	a, b := newSide(t, socket), newSide(t, socket)
	ctx := testContext(t)
	l := must[*cm.Listener](t)(b.m.Listen("127.0.0.1:0", &cm.ListenConfig{Type: verbs.UD}))
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		r, err := l.Accept(ctx)
		if err == nil {
			c := b.config("")
			c.Prepare = func(q *verbs.QP) error { return q.PostRecv(&verbs.RecvWR{ID: 1, SGL: []verbs.SGE{b.mr.Slice(0, 128)}}) }
			_, err = r.Accept(ctx, c)
		}
		done <- err
	}()
	c := a.config("")
	c.QP.Type = verbs.UD
	conn, err := a.m.Dial(ctx, l.Addr().String(), c)
	if err != nil {
		t.Fatalf("%v; the server: %v", err, <-done)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	wr := verbs.SendWR{Op: verbs.Send, SGL: []verbs.SGE{a.mr.Slice(0, 8)}}
	conn.Datagram(&wr)
	if err := conn.QP().PostSend(&wr); err != nil {
		t.Fatal(err)
	}
	var wc [1]verbs.WC
	if _, err := b.cq.Next(ctx, wc[:]); err != nil || wc[0].Err() != nil || wc[0].Bytes != 48 {
		t.Errorf("received %+v: %v", wc[0], err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
}

func TestMisuse(t *testing.T) {
	a := newSide(t, testdaemon.Start(t))
	ctx := testContext(t)
	if _, err := a.m.Dial(ctx, "127.0.0.1:1", cm.Config{}); err == nil {
		t.Error("connected without a protection domain")
	}
	if _, err := a.m.Dial(ctx, "nonsense", a.config("")); err == nil {
		t.Error("connected to nonsense")
	}
	l := must[*cm.Listener](t)(a.m.Listen("127.0.0.1:0", nil))
	defer l.Close()
	if _, err := a.m.Listen(l.Addr().String(), nil); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("two listeners at one port: %v", err)
	}
	if _, err := a.m.Listen("203.0.113.1:0", nil); !errors.Is(err, syscall.EADDRNOTAVAIL) && !errors.Is(err, syscall.ENODEV) {
		t.Errorf("listens at another's address: %v", err)
	}
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, err := l.Accept(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nobody came: %v", err)
	}
}

// TestMany opens many connections of one manager.
func TestMany(t *testing.T) {
	socket := testdaemon.Start(t)
	a, b := newSide(t, socket), newSide(t, socket)
	ctx := testContext(t)
	l := must[*cm.Listener](t)(b.m.Listen("127.0.0.1:0", nil))
	const many = 200
	before := leak.Descriptors(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var all []*cm.Conn
	keep := func(c *cm.Conn, err error) {
		if err != nil {
			t.Error(err)
			return
		}
		mu.Lock()
		all = append(all, c)
		mu.Unlock()
	}
	wg.Go(func() {
		for range many {
			r, err := l.Accept(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			wg.Go(func() { keep(r.Accept(ctx, b.config(""))) })
		}
	})
	for k := range 4 {
		wg.Go(func() {
			for range many / 4 {
				keep(a.m.Dial(ctx, l.Addr().String(), a.config(fmt.Sprint(k))))
			}
		})
	}
	wg.Wait()
	if now := leak.Descriptors(t); now > before+10 {
		t.Errorf("%d connections have %d descriptors more", many, now-before)
	}
	for _, c := range all {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestNothingIsLeft opens and closes connections, orderly and not, and checks that no goroutine, descriptor or mapping is left.
func TestNothingIsLeft(t *testing.T) {
	socket := testdaemon.Spawn(t)
	a, b := newSide(t, socket), newSide(t, socket)
	round := func() {
		client, server := connection(t, a, b, nil)
		if err := errors.Join(client.Close(), server.Close(), client.Close()); err != nil {
			t.Fatal(err)
		}
		if _, err := a.m.Dial(testContext(t), "127.0.0.1:1", a.config("")); err == nil {
			t.Fatal("nobody listens there")
		}
		short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		l := must[*cm.Listener](t)(b.m.Listen("127.0.0.1:0", nil))
		_, _ = a.m.Dial(short, l.Addr().String(), a.config("")) // not accepted in time
		l.Close()
		m := must[*cm.Manager](t)(cm.New(a.dev))
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
	round()
	before := testdaemon.Holdings()
	before.Goroutines += 2 // the test's own, for a moment
	for range 30 {
		round()
	}
	testdaemon.Settles(t, before)
}
