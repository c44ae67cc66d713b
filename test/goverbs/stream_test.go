package goverbs

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/verbs"
	"vrdma.dev/vrdma/verbs/stream"
)

func provider(t testing.TB, d *harness.Daemon) *stream.Provider {
	t.Helper()
	p, err := stream.Open(testContext(t), verbs.Options{Socket: d.Socket}, stream.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func TestCurl(t *testing.T) {
	d := harness.Device(t)
	curl(t, d, "127.0.0.1", d)
}

// curl gets a page of http.Server with curl over rsockets.
func curl(t *testing.T, here *harness.Daemon, ip string, there *harness.Daemon) {
	harness.Need(t, "curl")
	p := provider(t, here)
	l, err := p.Listen(ip + ":0")
	if err != nil {
		t.Fatal(err)
	}
	page := bytes.Repeat([]byte("a page over RDMA\n"), 50000)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(page) })}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	file := filepath.Join(t.TempDir(), "page")
	there.LaunchWith(t, []string{"--sockets"}, "curl", "-sS", "--max-time", "50", "-o", file, "http://"+l.Addr().String()+"/").OK(t, minute)
	if got, err := os.ReadFile(file); err != nil || sha256.Sum256(got) != sha256.Sum256(page) {
		t.Errorf("curl got %d bytes of %d: %v", len(got), len(page), err)
	}
	srv.Close()
	<-served
}

// TestPython: http.Client gets a page of Python's server, which runs over rsockets.
func TestPython(t *testing.T) {
	harness.Need(t, "python3")
	d := harness.Device(t)
	dir := t.TempDir()
	page := bytes.Repeat([]byte("a page of python's\n"), 50000)
	if err := os.WriteFile(filepath.Join(dir, "page"), page, 0o644); err != nil {
		t.Fatal(err)
	}
	port := harness.FreePort(t)
	server := d.LaunchWith(t, []string{"--sockets"}, "python3", "-m", "http.server", "--bind", "127.0.0.1", "-d", dir, strconv.Itoa(port))
	d.AwaitManaged(t, server, port)
	p := provider(t, d)
	tr := &http.Transport{DialContext: p.DialContext}
	client := http.Client{Transport: tr, Timeout: minute}
	r, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/page", port))
	if err != nil {
		t.Fatalf("%v\n%s", err, server.Output())
	}
	got, err := io.ReadAll(r.Body)
	r.Body.Close()
	if err != nil || !bytes.Equal(got, page) {
		t.Errorf("got %d bytes of %d: %v", len(got), len(page), err)
	}
	tr.CloseIdleConnections()
	server.End()
}
