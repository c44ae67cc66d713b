package filecopy

import (
	"context"
	"path/filepath"
	"testing"
)

// TestOneChunk copies by the published protocol. (With a C program at the other end: test/cp.)
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
