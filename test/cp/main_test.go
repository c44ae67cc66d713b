// Package cp tests `vrdma cp` as its users run it: real processes, a daemon on one host or one on each of
// two, ssh, peers that are killed, disks that are full, and C programs that speak the published protocol.
package cp

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/cable"
	"vrdma.dev/vrdma/test/harness"
)

const minute = time.Minute

func TestMain(m *testing.M) { harness.Main(m) }

// A host is a daemon, perhaps in its own network namespace. nil: programs there start one.
type host struct {
	*harness.Daemon
	ip    string
	space *cable.Namespace // nil: here
}

// here is one host.
func here(t *testing.T) *host {
	t.Helper()
	return &host{Daemon: harness.Device(t), ip: "127.0.0.1"}
}

// two are two hosts on one wire.
func two(t *testing.T) (a, b *host) {
	t.Helper()
	harness.Need(t, "nsenter", "ip")
	a = &host{space: cable.NewNamespace(t), ip: "10.97.0.1"}
	b = &host{space: cable.NewNamespace(t), ip: "10.97.0.2"}
	cable.Veth(t, a.space, b.space, "eth0", 9000)
	for _, h := range []*host{a, b} {
		h.space.Address(t, "eth0", h.ip+"/24")
		h.Daemon = harness.Start(t, harness.Options{Addr: h.ip, Network: h.space.Path()})
	}
	return a, b
}

// inside is a command on the host.
func (h *host) inside(argv ...string) *exec.Cmd {
	if h.space != nil {
		argv = append([]string{"nsenter", "--net=" + h.space.Path(), "--"}, argv...)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	if h.Daemon != nil {
		cmd.Env = h.Command().Env
	}
	return cmd
}

// cp starts `vrdma cp` on the host.
func (h *host) cp(t *testing.T, args ...string) *harness.Process {
	t.Helper()
	return harness.Spawn(t, h.inside(append([]string{harness.Binary(), "cp"}, args...)...))
}

// A server is a `vrdma cp --serve` that keeps running.
type server struct {
	*harness.Process
	h    *host
	port int
	args []string
}

const listening = "the data is not encrypted"

// serve starts a server and waits until it listens.
func (h *host) serve(t *testing.T, dir string, args ...string) *server {
	t.Helper()
	s := &server{h: h, port: harness.FreePort(t)}
	s.args = append([]string{"--serve", dir, "--listen", fmt.Sprintf("%s:%d", h.ip, s.port)}, args...)
	s.start(t)
	return s
}

func (s *server) start(t *testing.T) {
	t.Helper()
	s.Process = s.h.cp(t, s.args...)
	s.Printed(t, listening, minute)
}

// url returns a path on the server.
func (s *server) url(path string) string { return fmt.Sprintf("rdma://%s:%d/%s", s.h.ip, s.port, path) }

// content returns n bytes that depend on n.
func content(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(n), byte(n >> 8), byte(n >> 16)}).Read(b)
	return b
}

func write(t *testing.T, path string, b []byte) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o640); err != nil {
		t.Fatal(err)
	}
	return path
}

func same(t *testing.T, path string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	} else if !bytes.Equal(got, want) {
		t.Errorf("%s has %d bytes that differ from the %d that were copied", path, len(got), len(want))
	}
}

// names returns the files in a directory.
func names(t *testing.T, dir string) string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range list {
		out = append(out, e.Name())
	}
	return strings.Join(out, " ")
}

// fails waits until a process ends with an error that has this text.
func fails(t *testing.T, p *harness.Process, text string) {
	t.Helper()
	if code := p.Wait(t, minute); code == 0 || !strings.Contains(p.Output(), text) {
		t.Errorf("%s: exit %d, want an error that says %q\n%s", p.Name, code, text, p.Output())
	}
}

// halt stops and continues a process.
func halt(p *harness.Process)   { p.Signal(syscall.SIGSTOP) }
func resume(p *harness.Process) { p.Signal(syscall.SIGCONT) }
