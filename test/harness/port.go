package harness

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// FreePort returns a TCP port that no process listens on, reserved until the end of the test. It lies below
// the range that the kernel gives to outgoing connections, so none of those takes it meanwhile.
func FreePort(t testing.TB) int {
	t.Helper()
	for range 100 {
		port := 20000 + rand.IntN(12000)
		// Test packages run side by side. This abstract socket reserves the port among them: it belongs to
		// the same network namespace, and the kernel removes it with its process.
		reserved, err := net.Listen("unix", fmt.Sprintf("@vrdma-test-port-%d", port))
		if err != nil {
			continue
		}
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if err != nil {
			reserved.Close()
			continue
		}
		l.Close()
		t.Cleanup(func() { reserved.Close() })
		return port
	}
	t.Fatal("no free TCP port between 20000 and 32000 in 100 attempts")
	return 0
}

// Listening waits until a process listens on port. It reads the kernel's table instead of connecting, because
// perftest's servers accept only once.
func Listening(t testing.TB, p *Process, port int, d time.Duration) {
	t.Helper()
	ok := Poll(d, func() bool { return p.Ended(0) || Listens(p, port) })
	if !ok {
		t.Fatalf("%s: does not listen on port %d after %v\n%s\noutput:\n%s", p.Name, port, d, p.where(), p.Output())
	}
	if p.Ended(0) {
		t.Fatalf("%s: ended before it listened on port %d\noutput:\n%s", p.Name, port, p.Output())
	}
}

// Listens reports whether a process listens on a TCP port in p's network namespace.
func Listens(p *Process, port int) bool {
	dir := fmt.Sprintf("/proc/%d/net", p.PID())
	return listens(dir+"/tcp", port) || listens(dir+"/tcp6", port)
}

func listens(table string, port int) bool {
	f, err := os.Open(table)
	if err != nil {
		return false
	}
	defer f.Close()
	want := fmt.Sprintf(":%04X", port)
	for s := bufio.NewScanner(f); s.Scan(); {
		field := strings.Fields(s.Text())
		const listen = "0A"
		if len(field) > 3 && field[3] == listen && strings.HasSuffix(field[1], want) {
			return true
		}
	}
	return false
}
