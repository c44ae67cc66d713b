package filecopy

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestOneChunk copies with the published protocol. test/cp does so with a C program as the peer.
func TestOneChunk(t *testing.T) {
	open := places(t)["rdma"]
	p, err := open(testContext(t))
	ok(t, err)
	defer p.Close()
	dir := t.TempDir()
	files, err := Below(dir)
	ok(t, err)
	defer files.Close()
	v := &Server{Files: files, Log: t.Logf}
	ctx, cancel := context.WithCancel(testContext(t))
	ready, ended := make(chan string, 1), make(chan error, 1)
	go func() { ended <- v.ServeOne(ctx, p, "127.0.0.1:0", func(a string) { ready <- a }) }()
	addr := <-ready
	for name, n := range map[string]int{"empty": 0, "small": 100, "whole": 2 * oneBuffer, "more": 2*oneBuffer + 5<<20} {
		path := write(t, filepath.Join(t.TempDir(), name), content(n))
		ok(t, PutOne(testContext(t), p, addr, path, name, nil))
		same(t, filepath.Join(dir, name), content(n))
	}
	path := write(t, filepath.Join(t.TempDir(), "x"), content(10))
	for _, name := range []string{"small", "../x", "a/b", "..", "."} {
		if err := PutOne(testContext(t), p, addr, path, name, nil); err == nil {
			t.Errorf("%q was taken", name)
		}
	}
	tidy(t, dir, "empty", "more", "small", "whole")
	cancel()
	ok(t, <-ended)
}

// TestOneSilent: a client that stops in the middle does not keep its slot for ever.
func TestOneSilent(t *testing.T) {
	p, err := places(t)["rdma"](testContext(t))
	ok(t, err)
	defer p.Close()
	dir := t.TempDir()
	files, err := Below(dir)
	ok(t, err)
	defer files.Close()
	said := make(chan string, 10)
	v := &Server{Files: files, Log: func(format string, args ...any) { said <- fmt.Sprintf(format, args...) }, chunkTime: 10 * time.Millisecond}
	ctx, cancel := context.WithCancel(testContext(t))
	ready, ended := make(chan string, 1), make(chan error, 1)
	go func() { ended <- v.ServeOne(ctx, p, "127.0.0.1:0", func(a string) { ready <- a }) }()
	addr := <-ready
	// The client waits for data to read.
	fifo := filepath.Join(t.TempDir(), "fifo")
	ok(t, unix.Mkfifo(fifo, 0o600))
	hold, err := os.OpenFile(fifo, os.O_RDWR, 0)
	ok(t, err)
	put := make(chan error, 1)
	go func() { put <- PutOne(testContext(t), p, addr, fifo, "f", nil) }()
	select {
	case text := <-said:
		if !strings.HasSuffix(text, "f: no chunk came for 10ms") {
			t.Errorf("the log says %q", text)
		}
	case <-time.After(patience):
		t.Fatal("it keeps its place")
	}
	// The client waits for the file, or learned of the end before.
	ok(t, hold.Close())
	if err := <-put; err == nil {
		t.Error("the client thinks that all is well")
	}
	tidy(t, dir)
	cancel()
	ok(t, <-ended)
}
