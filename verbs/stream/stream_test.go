package stream_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"vrdma.dev/vrdma/internal/testkit/testdaemon"
	"vrdma.dev/vrdma/verbs"
	"vrdma.dev/vrdma/verbs/stream"
)

func TestMain(m *testing.M) { os.Exit(testdaemon.Tests(m)) }

func provider(t testing.TB, socket string, c stream.Config) *stream.Provider {
	t.Helper()
	p, err := stream.Open(t.Context(), verbs.Options{Socket: socket}, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// pipe returns the two ends of a connection.
func pipe(a, b *stream.Provider) (client, server net.Conn, err error) {
	l, err := b.Listen("127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		var err error
		server, err = l.Accept()
		done <- err
	}()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if client, err = a.Dial(ctx, l.Addr().String()); err != nil {
		return nil, nil, err
	}
	return client, server, <-done
}

func connected(t testing.TB, c stream.Config) (client, server net.Conn) {
	t.Helper()
	socket := testdaemon.Spawn(t)
	client, server, err := pipe(provider(t, socket, c), provider(t, socket, c))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

func TestConn(t *testing.T) {
	socket := testdaemon.Spawn(t)
	a, b := provider(t, socket, stream.Config{}), provider(t, socket, stream.Config{})
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		c1, c2, err := pipe(a, b)
		return c1, c2, func() { c1.Close(); c2.Close() }, err
	})
}

// TestBytes sends pieces of any size in both directions at once, through small buffers and growing ones.
func TestBytes(t *testing.T) {
	for _, x := range []struct {
		name  string
		cfg   stream.Config
		total int
	}{{"small", stream.Config{Buffer: 8 << 10, Messages: 16}, 4 << 20}, {"growing", stream.Config{}, 32 << 20}} {
		t.Run(x.name, func(t *testing.T) { bothWays(t, x.cfg, x.total) })
	}
}

func bothWays(t *testing.T, cfg stream.Config, total int) {
	client, server := connected(t, cfg)
	var wg sync.WaitGroup
	for i, end := range []net.Conn{client, server} {
		r := rand.NewChaCha8([32]byte{byte(i)})
		sizes := rand.New(rand.NewPCG(uint64(i), 1))
		sums := make(chan [32]byte, 1)
		wg.Go(func() {
			h := sha256.New()
			for left := total; left > 0; {
				b := make([]byte, min(left, 1+sizes.IntN(200000)))
				r.Read(b)
				h.Write(b)
				if _, err := end.Write(b); err != nil {
					t.Error(err)
					return
				}
				left -= len(b)
			}
			sums <- [32]byte(h.Sum(nil))
		})
		other := []net.Conn{server, client}[i]
		wg.Go(func() {
			h := sha256.New()
			if _, err := io.CopyN(h, other, int64(total)); err != nil {
				t.Error(err)
				return
			}
			if [32]byte(h.Sum(nil)) != <-sums {
				t.Error("other bytes arrived than were sent")
			}
		})
	}
	wg.Wait()
}

// TestGrowth checks that the buffers of a stream grow, and those of a conversation do not. It accepts any rate, because a busy machine
// makes a slow stream.
func TestGrowth(t *testing.T) {
	stream.SetQuickly(t, time.Hour)
	client, server := connected(t, stream.Config{})
	b := make([]byte, 64<<10)
	for range 1000 {
		if _, err := client.Write(b[:100]); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(server, b[:100]); err != nil {
			t.Fatal(err)
		}
	}
	if in, _ := stream.Buffers(server); in > 128<<10 {
		t.Errorf("a buffer of %d bytes for little messages", in)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			if _, err := client.Write(b); err != nil {
				return
			}
		}
	}()
	in := make([]byte, 64<<10)
	for end := time.Now().Add(time.Minute); ; {
		if _, err := server.Read(in); err != nil {
			t.Fatal(err)
		}
		got, _ := stream.Buffers(server)
		_, out := stream.Buffers(client)
		if got >= 1<<20 && out >= 1<<20 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the buffers are %d and %d bytes", got, out)
		}
	}
	server.Close()
	<-done
}

// TestSlowStream checks that the buffers of a slow stream do not grow.
func TestSlowStream(t *testing.T) {
	stream.SetQuickly(t, -1)
	client, server := connected(t, stream.Config{})
	b := make([]byte, 64<<10)
	for range 40 {
		if _, err := client.Write(b); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(server, b); err != nil {
			t.Fatal(err)
		}
	}
	in, _ := stream.Buffers(server)
	_, out := stream.Buffers(client)
	if in > 128<<10 || out > 128<<10 {
		t.Errorf("the buffers are %d and %d bytes", in, out)
	}
}

func TestHalfClose(t *testing.T) {
	client, server := connected(t, stream.Config{})
	if _, err := client.Write([]byte("question")); err != nil {
		t.Fatal(err)
	}
	if err := client.(*stream.Conn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Write([]byte("more")); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("wrote after CloseWrite: %v", err)
	}
	got, err := io.ReadAll(server)
	if err != nil || string(got) != "question" {
		t.Fatalf("read %q, %v", got, err)
	}
	if _, err := server.Write([]byte("answer")); err != nil {
		t.Fatal(err)
	}
	server.Close()
	if got, err := io.ReadAll(client); err != nil || string(got) != "answer" {
		t.Errorf("read %q, %v", got, err)
	}
}

func TestPeerIsGone(t *testing.T) {
	client, server := connected(t, stream.Config{})
	done := make(chan error, 1)
	go func() { _, err := server.Read(make([]byte, 1)); done <- err }()
	client.Close()
	if err := <-done; err != io.EOF {
		t.Errorf("read %v, want the end", err)
	}
	if _, err := server.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("wrote to nobody: %v", err)
	}
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("read from a closed connection: %v", err)
	}
}

func TestHTTP(t *testing.T) {
	socket := testdaemon.Spawn(t)
	p := provider(t, socket, stream.Config{})
	l, err := p.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	page := bytes.Repeat([]byte("all of it "), 100000)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Write(page) })}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	q := provider(t, socket, stream.Config{})
	tr := &http.Transport{DialContext: q.DialContext}
	client := http.Client{Transport: tr, Timeout: time.Minute}
	for range 3 {
		r, err := client.Get("http://" + l.Addr().String() + "/")
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil || !bytes.Equal(got, page) {
			t.Errorf("got %d bytes of %d: %v", len(got), len(page), err)
		}
	}
	tr.CloseIdleConnections()
	srv.Close()
	<-served
}

func TestNobodyListens(t *testing.T) {
	p := provider(t, testdaemon.Start(t), stream.Config{})
	if _, err := p.Dial(t.Context(), "127.0.0.1:1"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("connected to nobody: %v", err)
	}
}

// TestNothingIsLeft opens and closes connections, whichever side closes first.
func TestNothingIsLeft(t *testing.T) {
	socket := testdaemon.Spawn(t)
	a, b := provider(t, socket, stream.Config{}), provider(t, socket, stream.Config{})
	round := func(i int) {
		client, server, err := pipe(a, b)
		if err != nil {
			t.Fatal(err)
		}
		client.SetDeadline(time.Now().Add(time.Minute))
		if _, err := client.Write([]byte("some bytes that nobody reads")); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			client, server = server, client
		}
		if err := errors.Join(client.Close(), server.Close()); err != nil {
			t.Fatal(err)
		}
		if err := client.Close(); !errors.Is(err, net.ErrClosed) {
			t.Fatalf("closed twice: %v", err)
		}
	}
	round(0)
	before := testdaemon.Holdings()
	before.Goroutines += 2 // the test's own, for a moment
	for i := range 30 {
		round(i)
	}
	testdaemon.Settles(t, before)
}

// TestNoAllocations checks that neither reading nor writing allocates while no goroutine sleeps.
func TestNoAllocations(t *testing.T) {
	client, server := connected(t, stream.Config{})
	b := make([]byte, 4096)
	if n := testing.AllocsPerRun(500, func() {
		for _, end := range []net.Conn{client, server} {
			if _, err := end.Write(b[:64]); err != nil {
				t.Fatal(err)
			}
		}
		for _, end := range []net.Conn{server, client} {
			if _, err := io.ReadFull(end, b[:64]); err != nil {
				t.Fatal(err)
			}
		}
	}); n > 4 { // on a busy machine some sleep
		t.Errorf("%v allocations for two messages", n)
	}
}

// TestProviderClose closes providers with open connections, idle and in use: the connections break, and no resources are left.
func TestProviderClose(t *testing.T) {
	socket := testdaemon.Spawn(t)
	// Not closed by a test cleanup, which would keep a reference and so the mappings.
	open := func() *stream.Provider {
		p, err := stream.Open(t.Context(), verbs.Options{Socket: socket}, stream.Config{})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	round := func() {
		a, b := open(), open()
		var wg sync.WaitGroup
		var idle net.Conn
		for range 4 {
			client, server, err := pipe(a, b)
			if err != nil {
				t.Fatal(err)
			}
			idle = server
			wg.Go(func() { // until the provider is closed
				for b := make([]byte, 64<<10); ; {
					if _, err := client.Write(b); err != nil {
						return
					}
				}
			})
			wg.Go(func() { io.Copy(io.Discard, server) })
		}
		client, _, err := pipe(a, b)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(a.Close(), b.Close()); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		if _, err := client.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
			t.Fatalf("wrote to a connection of a closed provider: %v", err)
		}
		if err := idle.Close(); !errors.Is(err, net.ErrClosed) {
			t.Fatalf("closed a connection of a closed provider: %v", err)
		}
		if _, err := a.Dial(t.Context(), "127.0.0.1:1"); err == nil {
			t.Fatal("dialed with a closed provider")
		}
	}
	round()
	before := testdaemon.Holdings()
	before.Goroutines += 2 // the test's own, for a moment
	for range 5 {
		round()
	}
	testdaemon.Settles(t, before)
}
