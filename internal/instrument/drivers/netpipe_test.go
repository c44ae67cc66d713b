package drivers

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// NetPIPE's client exits with 246 where connect failed, which only its source says. The record has the reason in words.
func TestNetpipeStatus(t *testing.T) {
	const said = "NPtcp -P 21731 -l 64 -h 10.99.0.2: exit status %s:\nClient: Cannot Connect! errno=%d\nSend and receive buffers are 16384 and 131072 bytes\n(A bug in Linux doubles the requested buffer sizes)\nits server said:\nx"
	for _, test := range []struct {
		status string
		errno  int
		want   string
	}{
		{"246", 113, "NPtcp -P 21731 -l 64 -h 10.99.0.2: exit status 246 (its client could not connect, no route to host):\nClient: Cannot Connect! errno=113\nits server said:\nx"},
		{"9", 113, "NPtcp -P 21731 -l 64 -h 10.99.0.2: exit status 9:\nClient: Cannot Connect! errno=113\nits server said:\nx"},
	} {
		if got := explainNetpipe(fmt.Sprintf(said, test.status, test.errno)); got != test.want {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
	cause := errors.New("x")
	if d := Tools["qperf"]; d.Failure(cause) != cause {
		t.Error("a driver that explains nothing changes an error")
	}

	// The real NetPIPE, and a port on which nothing listens: it is bound.
	program, err := exec.LookPath("NPtcp")
	if err != nil {
		t.Skip("NPtcp is not installed")
	}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(s)
	if err := unix.Bind(s, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(s)
	if err != nil {
		t.Fatal(err)
	}
	port := fmt.Sprint(name.(*unix.SockaddrInet4).Port)
	argv := []string{program, "-h", "127.0.0.1", "-P", port, "-o", "/dev/null"}
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err == nil {
		t.Fatalf("connected to a port that nothing listens on:\n%s", out)
	}
	got := netpipeDriver.Failure(testbed.Failure(context.Background(), argv, err, string(out))).Error()
	if !strings.Contains(got, "exit status 246 (its client could not connect, connection refused)") {
		t.Errorf("got %q", got)
	}
}
