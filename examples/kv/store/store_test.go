package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/testkit/testdaemon"
	"vrdma.dev/vrdma/verbs"
	"vrdma.dev/vrdma/verbs/cm"
)

func TestMain(m *testing.M) {
	testdaemon.Main()
	if os.Getenv(workerVariable) != "" {
		worker()
		return
	}
	os.Exit(m.Run())
}

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// serve starts a server at a daemon's socket.
func serve(t testing.TB, socket string, c Config) (*Server, string) {
	t.Helper()
	s, err := NewServer(testContext(t), verbs.Options{Socket: socket}, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("closing the server: %v", err)
		}
	})
	at, err := s.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return s, at
}

func dialer(t testing.TB, socket string) *Dialer {
	t.Helper()
	d, err := NewDialer(testContext(t), verbs.Options{Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func closeLater[C Client](t testing.TB) func(C, error) C {
	return func(c C, err error) C {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
}

// ways returns a client of each kind.
func ways(t testing.TB, socket, at string) map[string]Client {
	t.Helper()
	d := dialer(t, socket)
	ctx := testContext(t)
	polls := dialer(t, socket)
	polls.Poll = true
	return map[string]Client{
		"rpc":                closeLater[*RPC](t)(d.DialRPC(ctx, at)),
		"one-sided":          closeLater[*OneSided](t)(d.DialOneSided(ctx, at)),
		"tcp":                closeLater[*TCP](t)(DialTCP(ctx, at)),
		"rpc, polling":       closeLater[*RPC](t)(polls.DialRPC(ctx, at)),
		"one-sided, polling": closeLater[*OneSided](t)(polls.DialOneSided(ctx, at)),
	}
}

// TestWays: every client reads what any client has put, with values of every length.
func TestWays(t *testing.T) {
	socket := testdaemon.Start(t)
	_, at := serve(t, socket, Config{Keys: 100, MaxValue: 4096})
	clients := ways(t, socket, at)
	ctx := testContext(t)
	version := uint64(0)
	buf := make([]byte, 4096)
	for i, size := range []int{8, 0, 1, 100, 4095, 4096, 8, 4096} {
		for writer, w := range clients {
			value := bytes.Repeat([]byte{byte('a' + i)}, size)
			version++
			if got, err := w.Put(ctx, 99, value); err != nil || got != version {
				t.Fatalf("%s: put %d bytes: version %d, want %d: %v", writer, size, got, version, err)
			}
			for reader, r := range clients {
				n, v, err := r.Get(ctx, 99, buf)
				if err != nil || v != version || !bytes.Equal(buf[:n], value) {
					t.Fatalf("%s after %s: %d bytes of version %d, want %d of %d: %v", reader, writer, n, v, size, version, err)
				}
			}
		}
	}
	for name, c := range clients {
		if n, v, err := c.Get(ctx, 0, buf); n != 0 || v != 0 || err != nil {
			t.Errorf("%s: a key that nobody wrote has %d bytes, version %d, %v", name, n, v, err)
		}
		if _, _, err := c.Get(ctx, 100, buf); !errors.Is(err, ErrNoKey) {
			t.Errorf("%s: get 100: %v, want %v", name, err, ErrNoKey)
		}
		if _, err := c.Put(ctx, 1<<63, nil); !errors.Is(err, ErrNoKey) {
			t.Errorf("%s: put 1<<63: %v, want %v", name, err, ErrNoKey)
		}
		if _, _, err := c.Get(ctx, 99, buf[:10]); err == nil {
			t.Errorf("%s: a value of 4096 bytes went into 10", name)
		}
		if _, err := c.Put(ctx, 5, []byte("still there")); err != nil {
			t.Errorf("%s: after errors: %v", name, err)
		}
	}
}

// TestServerSleeps: the server handles no message for a one-sided read, and one for an RPC or TCP request.
func TestServerSleeps(t *testing.T) {
	socket := testdaemon.Start(t)
	s, at := serve(t, socket, Config{Keys: 64, MaxValue: 64})
	ctx := testContext(t)
	const reads = 300
	buf := make([]byte, 64)
	for name, c := range ways(t, socket, at) {
		want := uint64(reads)
		if _, ok := c.(*OneSided); ok {
			want = 0
		}
		before := s.Stats().Messages
		for i := range reads {
			if _, _, err := c.Get(ctx, uint64(i%64), buf); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if got := s.Stats().Messages - before; got != want {
			t.Errorf("%s: the server handled %d messages for %d reads, want %d", name, got, reads, want)
		}
	}
}

// TestReadInTheMiddle: a writer stops halfway. A one-sided read returns the old value before and the new one after. In between it
// finds the record torn and asks the server, which waits for the writer.
func TestReadInTheMiddle(t *testing.T) {
	socket := testdaemon.Start(t)
	s, at := serve(t, socket, Config{Keys: 4, MaxValue: 1000})
	d := dialer(t, socket)
	ctx := testContext(t)
	reader := closeLater[*OneSided](t)(d.DialOneSided(ctx, at))
	writer := closeLater[*RPC](t)(d.DialRPC(ctx, at))
	before, after := bytes.Repeat([]byte{'a'}, 1000), bytes.Repeat([]byte{'b'}, 1000)
	if _, err := writer.Put(ctx, 2, before); err != nil {
		t.Fatal(err)
	}
	half, goOn := make(chan struct{}), make(chan struct{})
	s.table.halfway = func() { close(half); <-goOn }
	written := make(chan error, 1)
	go func() {
		_, err := writer.Put(ctx, 2, after)
		written <- err
	}()
	<-half
	slot, err := reader.read(ctx, 2, valueAt+1000)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(slot, []byte("ba")) {
		t.Error("the writer has stopped halfway, but the device does not read a mixture")
	}
	if value, _, err := readSlot(slot, 2); !errors.Is(err, errTorn) {
		t.Errorf("the mixture was taken for %d bytes: %v", len(value), err)
	}
	got := make(chan string, 1)
	go func() {
		buf := make([]byte, 1000)
		n, version, err := reader.Get(ctx, 2, buf)
		got <- fmt.Sprintf("%s %d %v", buf[:n], version, err)
	}()
	// The reader asks the server: a message that waits for the lock.
	for deadline := time.Now().Add(time.Minute); s.Stats().Messages < 3; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the reader does not ask the server")
		}
	}
	select {
	case g := <-got:
		t.Fatalf("in the middle of an update the reader got %q", g)
	default:
	}
	close(goOn)
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	if g, want := <-got, fmt.Sprintf("%s 2 <nil>", after); g != want {
		t.Errorf("got %q, want %q", g, want)
	}
	if reader.Torn != attempts || reader.Asked != 1 {
		t.Errorf("%d torn reads, and asked %d times; want %d and 1", reader.Torn, reader.Asked, attempts)
	}
}

// TestTableIsReadOnly: a client that writes to the table loses its connection, without other effects.
func TestTableIsReadOnly(t *testing.T) {
	socket := testdaemon.Start(t)
	_, at := serve(t, socket, Config{Keys: 4, MaxValue: 8})
	d := dialer(t, socket)
	ctx := testContext(t)
	bad := closeLater[*OneSided](t)(d.DialOneSided(ctx, at))
	err := bad.conn.QP().PostSend(&verbs.SendWR{
		ID: idRead, Op: verbs.Write, Flags: verbs.Signaled, SGL: []verbs.SGE{bad.mr.Slice(0, 8)}, RemoteAddr: bad.table.addr, RKey: bad.table.rkey,
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bad.await(ctx, bad.sent, idRead); !errors.Is(err, verbs.RemoteAccessError) {
		t.Errorf("a write to the table: %v, want %v", err, verbs.RemoteAccessError)
	}
	if _, _, err := bad.Get(ctx, 1, nil); err == nil {
		t.Error("a broken client goes on")
	}
	good := closeLater[*OneSided](t)(d.DialOneSided(ctx, at))
	if n, v, err := good.Get(ctx, 0, nil); n != 0 || v != 0 || err != nil {
		t.Errorf("after it: %d bytes, version %d, %v", n, v, err)
	}
}

// TestStrangers: an invalid request ends its own connection, or gets an error.
func TestStrangers(t *testing.T) {
	socket := testdaemon.Start(t)
	_, at := serve(t, socket, Config{Keys: 4, MaxValue: 8})
	ctx := testContext(t)
	d := dialer(t, socket)

	rpc := closeLater[*RPC](t)(d.DialRPC(ctx, at))
	rpc.room().setHead(77, 0, 0, 0, 0)
	if _, err := rpc.call(ctx, headSize); !errors.Is(err, ErrBad) {
		t.Errorf("an unknown operation: %v, want %v", err, ErrBad)
	}
	rpc.room().setHead(opPut, 0, 0, 0, 8) // and no value
	if _, err := rpc.call(ctx, headSize); !errors.Is(err, ErrBad) {
		t.Errorf("a request without its value: %v, want %v", err, ErrBad)
	}
	if _, err := rpc.call(ctx, 3); !errors.Is(err, ErrBad) {
		t.Errorf("three bytes: %v, want %v", err, ErrBad)
	}
	if _, err := rpc.Put(ctx, 1, make([]byte, 9)); err == nil {
		t.Error("a value of 9 bytes went into 8")
	}

	tcp, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	tcp.SetDeadline(time.Now().Add(time.Minute))
	tcp.Write(bytes.Repeat([]byte{0xff}, headSize))
	if n, err := tcp.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("nonsense over TCP: %d bytes, %v; want the end", n, err)
	}
	again := closeLater[*RPC](t)(d.DialRPC(ctx, at))
	if _, err := again.Put(ctx, 1, []byte("12345678")); err != nil {
		t.Errorf("after strangers: %v", err)
	}
}

// TestNoStore: a client rejects a server that is not a store.
func TestNoStore(t *testing.T) {
	socket := testdaemon.Start(t)
	d := dialer(t, socket)
	ctx := testContext(t)
	l, err := d.m.Listen("127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	cq, err := d.dev.CreateCQ(8)
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Accept(ctx)
		if err == nil {
			var c *cm.Conn
			if c, err = r.Accept(ctx, cm.Config{PD: d.pd, QP: verbs.QPConfig{SendCQ: cq}}); err == nil {
				<-c.Done()
				c.Close()
			}
		}
		accepted <- err
	}()
	if c, err := d.DialRPC(ctx, l.Addr().String()); err == nil {
		c.Close()
		t.Error("connected to something that is no store")
	}
	if err := <-accepted; err != nil {
		t.Error(err)
	}
}

// TestServerEnds: outstanding calls return an error when the server closes.
func TestServerEnds(t *testing.T) {
	socket := testdaemon.Start(t)
	s, err := NewServer(testContext(t), verbs.Options{Socket: socket}, Config{Keys: 4})
	if err != nil {
		t.Fatal(err)
	}
	at, err := s.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx := testContext(t)
	var calls atomic.Uint64
	errs := make(chan error)
	clients := ways(t, socket, at)
	for _, c := range clients {
		go func() {
			buf := make([]byte, defaultMaxValue)
			for {
				if _, _, err := c.Get(ctx, 1, buf); err != nil {
					errs <- err
					return
				}
				calls.Add(1)
			}
		}()
	}
	for calls.Load() < 100 {
		time.Sleep(time.Millisecond)
		if ctx.Err() != nil {
			t.Fatal("the clients do not get on")
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for range clients {
		if err := <-errs; errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a client only ended with the test: %v", err)
		}
	}
}

// TestConfig: invalid sizes are rejected before a device is opened.
func TestConfig(t *testing.T) {
	for _, c := range []Config{{Keys: -1}, {MaxValue: -1}, {MaxValue: MaxValue + 1}, {Keys: 1 << 40}} {
		if s, err := NewServer(testContext(t), verbs.Options{Socket: "/nowhere"}, c); err == nil {
			s.Close()
			t.Errorf("%+v was accepted", c)
		}
	}
}
