package filecopy

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/testkit/testdaemon"
)

const patience = time.Minute

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// A lab is a server with the settings of its clients.
type lab struct {
	t    testing.TB
	dir  string // the served directory
	open func(context.Context) (Transport, error)
	addr string
	v    *Server

	mu  sync.Mutex
	log []string
}

// places are the transports that tests of whole copies run over.
func places(t *testing.T) map[string]func(context.Context) (Transport, error) {
	socket := testdaemon.Start(t)
	return map[string]func(context.Context) (Transport, error){
		"rdma": func(ctx context.Context) (Transport, error) { return OpenRDMA(ctx, socket) },
		"tcp":  func(context.Context) (Transport, error) { return TCP(), nil },
	}
}

// over runs a test over RDMA and over TCP.
func over(t *testing.T, test func(*testing.T, *lab)) {
	for name, open := range places(t) {
		t.Run(name, func(t *testing.T) { test(t, newLab(t, open, &Server{Write: true, Overwrite: true})) })
	}
}

// newLab starts a server with a directory of its own.
func newLab(t testing.TB, open func(context.Context) (Transport, error), v *Server) *lab {
	t.Helper()
	return newLabAt(t, t.TempDir(), open, v)
}

// newLabAt starts a server of this directory.
func newLabAt(t testing.TB, dir string, open func(context.Context) (Transport, error), v *Server) *lab {
	t.Helper()
	l := &lab{t: t, dir: dir, open: open, v: v}
	files, err := Below(l.dir)
	if err != nil {
		t.Fatal(err)
	}
	v.Files = files
	v.Log = func(format string, args ...any) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.log = append(l.log, fmt.Sprintf(format, args...))
	}
	p, err := open(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan string, 1), make(chan error, 1)
	go func() { ended <- v.Serve(ctx, p, "127.0.0.1:0", func(a string) { ready <- a }) }()
	select {
	case l.addr = <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the server: %v", err)
		}
		if err := p.Close(); err != nil {
			t.Errorf("closing: %v", err)
		}
		files.Close()
		if t.Failed() {
			t.Logf("the server's log:\n%s", l.logged())
		}
	})
	return l
}

func (l *lab) logged() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.log, "\n")
}

// client returns a client with the usual settings.
func (l *lab) client() *Client {
	return &Client{
		Open: l.open, Addrs: []string{l.addr}, Key: l.v.Key, Streams: 4, Slots: 4, Patience: patience, Progress: &Progress{},
		Report: func(path string, err error) { l.t.Logf("not copied: %s: %v", path, err) },
		Notice: func(text string) { l.t.Log(text) },
	}
}

// content returns n bytes that do not compress.
func content(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(n), byte(n >> 8), byte(n >> 16)}).Read(b)
	return b
}

func write(t testing.TB, path string, b []byte) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// same fails the test unless a file has this content.
func same(t testing.TB, path string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	} else if !bytes.Equal(got, want) {
		t.Errorf("%s: %d bytes that differ from the %d that were copied", path, len(got), len(want))
	}
}

// tidy fails the test if a directory has other entries than want.
func tidy(t testing.TB, dir string, want ...string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range list {
		got = append(got, e.Name())
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("%s has %q, want %q", dir, got, want)
	}
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// refused fails the test unless err contains this text.
func refused(t testing.TB, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Fatalf("got %v, want an error that says %q", err, text)
	}
}

// waitFor waits until f returns true.
func waitFor(t testing.TB, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it did not happen")
		}
	}
}
