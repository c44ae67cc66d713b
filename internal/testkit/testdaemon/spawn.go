package testdaemon

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
)

// child is set in a test binary that is started as a daemon.
const child = "VRDMA_TEST_DAEMON"

// Main must be called first by the TestMain of a package that uses Spawn. In the process that Spawn starts it runs the daemon and does
// not return.
func Main() {
	if os.Getenv(child) == "" {
		return
	}
	t := &host{}
	socket, stop := Run(t)
	fmt.Println(socket)
	io.Copy(io.Discard, os.Stdin) // until the test closes it, or ends
	stop()
	t.end()
	os.Exit(0)
}

// Tests runs the tests of a package with a daemon for its examples, at VRDMA_SOCKET. TestMain calls it instead of Main. It returns the
// exit status.
func Tests(m *testing.M) int {
	Main()
	h := &host{}
	defer h.end()
	socket, stop := Run(h)
	defer stop()
	os.Setenv("VRDMA_SOCKET", socket)
	return m.Run()
}

// Spawn starts a daemon in a process of its own, which ends with the test, and returns its socket.
func Spawn(t testing.TB) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), child+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the daemon: %v", err)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the daemon did not start: %v", err)
	}
	return line[:len(line)-1]
}

// A host is the testing.TB that Run needs, in a process that is not a test.
type host struct {
	testing.TB
	dirs []string
}

func (h *host) Helper() {}

func (h *host) TempDir() string {
	dir, err := os.MkdirTemp("", "vrdma")
	if err != nil {
		h.Fatal(err)
	}
	h.dirs = append(h.dirs, dir)
	return dir
}

func (h *host) Fatal(args ...any) {
	h.Errorf("%s", fmt.Sprint(args...))
	h.end()
	os.Exit(1)
}

func (h *host) Errorf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func (h *host) end() {
	for _, dir := range h.dirs {
		os.RemoveAll(dir)
	}
}
