package systemd

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// manager is a fake service manager.
func manager(t *testing.T) (*net.UnixConn, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetReadDeadline(time.Now().Add(time.Minute))
	return c, path
}

func receive(t *testing.T, c *net.UnixConn) string {
	t.Helper()
	var b [4096]byte
	n, err := c.Read(b[:])
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:n])
}

func environment(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

func TestNotify(t *testing.T) {
	c, path := manager(t)
	n := fromEnvironment(environment("NOTIFY_SOCKET", path), 7)
	if err := n.Send(Ready, Status("serving %d\nprograms", 2)); err != nil {
		t.Fatal(err)
	}
	if got, want := receive(t, c), "READY=1\nSTATUS=serving 2 programs"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if err := n.Send(Reloading()); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(receive(t, c), "\n")
	if len(lines) != 2 || lines[0] != "RELOADING=1" || !strings.HasPrefix(lines[1], "MONOTONIC_USEC=") {
		t.Errorf("got %q", lines)
	}
	if usec, err := strconv.ParseInt(strings.TrimPrefix(lines[1], "MONOTONIC_USEC="), 10, 64); err != nil || usec <= 0 {
		t.Errorf("got %v, %v", usec, err)
	}
}

func TestNobody(t *testing.T) {
	for _, address := range []string{"", "vsock:2:1234", "relative"} {
		n := fromEnvironment(environment("NOTIFY_SOCKET", address, "WATCHDOG_USEC", "1000"), 7)
		if n.Used() {
			t.Errorf("%q is used", address)
		}
		if err := n.Send(Ready); err != nil {
			t.Errorf("%q: %v", address, err)
		}
		n.Watch(t.Context(), func() error { t.Error("a proof without a manager"); return nil }, func(error) {})
	}
	n := fromEnvironment(environment("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "none")), 7)
	if n.Send(Ready) == nil {
		t.Error("a manager that does not exist has no error")
	}
}

func TestWatchdogVariables(t *testing.T) {
	for _, test := range []struct {
		usec, pid string
		want      time.Duration
	}{
		{"3000000", "", 3 * time.Second}, {"3000000", "7", 3 * time.Second}, {"3000000", "8", 0}, {"", "", 0}, {"-1", "", 0}, {"x", "", 0},
	} {
		n := fromEnvironment(environment("NOTIFY_SOCKET", "/x", "WATCHDOG_USEC", test.usec, "WATCHDOG_PID", test.pid), 7)
		if n.watchdog != test.want {
			t.Errorf("%+v: got %v", test, n.watchdog)
		}
	}
}

// TestWatch proves that the watchdog is pinged while proofs succeed, and not while one hangs or fails.
func TestWatch(t *testing.T) {
	c, path := manager(t)
	n := &Notifier{address: path, watchdog: 3 * time.Millisecond}
	ctx, cancel := context.WithCancel(t.Context())
	proofs, missed, ended := make(chan error), make(chan error, 1), make(chan struct{})
	go func() {
		defer close(ended)
		n.Watch(ctx, func() error {
			select {
			case err := <-proofs:
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		}, func(err error) {
			select {
			case missed <- err:
			default:
			}
		})
	}()
	for range 3 {
		proofs <- nil
		if got := receive(t, c); got != Alive {
			t.Fatalf("got %q", got)
		}
	}
	if err := <-missed; !errors.Is(err, ErrNoProgress) { // no proof ends
		t.Fatal(err)
	}
	failure := errors.New("failure")
	proofs <- failure
	for err := range missed {
		if errors.Is(err, failure) {
			break
		}
	}
	proofs <- nil // it goes on
	if got := receive(t, c); got != Alive {
		t.Fatalf("got %q", got)
	}
	cancel()
	<-ended
}

// TestListeners lets a child process inherit sockets as a service does.
func TestListeners(t *testing.T) {
	if os.Getenv("VRDMA_TEST_CHILD") != "" {
		child()
		return
	}
	dir := t.TempDir()
	for _, test := range []struct{ name, network, want string }{
		{"packets", "unixpacket", "hello\n"},
		{"stream", "unix", "ListenSequentialPacket="},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(dir, test.name)
			l, err := net.ListenUnix(test.network, &net.UnixAddr{Name: path, Net: test.network})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			f, err := l.File()
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			// LISTEN_PID is the pid of the process itself: a shell sets it and execs the test.
			c := exec.Command("sh", "-c", `LISTEN_PID=$$ exec "$0" -test.run '^TestListeners$'`, os.Args[0])
			c.Env = append(os.Environ(), "VRDMA_TEST_CHILD=1", "LISTEN_FDS=1")
			c.ExtraFiles = []*os.File{f}
			var conn *net.UnixConn
			if test.network == "unixpacket" {
				if conn, err = net.DialUnix(test.network, nil, &net.UnixAddr{Name: path, Net: test.network}); err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
			}
			out, err := c.CombinedOutput()
			if err != nil || !strings.Contains(string(out), test.want) {
				t.Errorf("%v, got %q, want %q", err, out, test.want)
			}
			if _, err := os.Lstat(path); err != nil {
				t.Errorf("the child removed the manager's socket: %v", err)
			}
		})
	}
}

func child() {
	list, err := Listeners()
	if err != nil {
		os.Stdout.WriteString(err.Error() + "\n")
		os.Exit(0)
	}
	c, err := list[0].AcceptUnix()
	if err != nil {
		os.Stdout.WriteString(err.Error() + "\n")
		os.Exit(0)
	}
	c.Close()
	list[0].Close()
	os.Stdout.WriteString("hello\n")
	os.Exit(0)
}

func TestInherited(t *testing.T) {
	for _, test := range []struct {
		fds, pid string
		want     int
		fails    bool
	}{
		{"", "", 0, false}, {"1", "7", 1, false}, {"1", "8", 0, false}, {"1", "", 0, false}, {"-1", "7", 0, true}, {"x", "7", 0, true}, {"1000000", "7", 0, true},
	} {
		got, err := inherited(environment("LISTEN_FDS", test.fds, "LISTEN_PID", test.pid), 7)
		if got != test.want || (err != nil) != test.fails {
			t.Errorf("%+v: got %d, %v", test, got, err)
		}
	}
}
