package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// toolTimeout is how long one run of one tool may take before it counts as failed.
const toolTimeout = 90 * time.Second

// A Lab is a place to measure in: a private directory with a copy of the product
// and a socket, perhaps for another user. Close leaves nothing of it behind.
type Lab struct {
	Dir    string
	Socket string
	Vrdma  string              // the copied binary
	User   *syscall.Credential // whom everything runs as; nil: ourselves
}

// NewLab copies the product, binary and shared objects, into a new directory, so
// that a user who cannot read the original's can run it.
func NewLab(binary string, user *syscall.Credential) (*Lab, error) {
	dir, err := os.MkdirTemp("/tmp", "vrdma-lab") // short: it holds a socket
	if err != nil {
		return nil, err
	}
	l := &Lab{Dir: dir, Socket: filepath.Join(dir, "s"), Vrdma: filepath.Join(dir, "vrdma"), User: user}
	err = copyFile(binary, l.Vrdma)
	for _, library := range []string{"libvrdma.so", "libvrdma-sockets.so"} {
		err = errors.Join(err, copyFile(filepath.Join(filepath.Dir(binary), library), filepath.Join(dir, library)))
	}
	if err == nil && user != nil {
		err = errors.Join(os.Chmod(dir, 0o755), os.Chown(dir, int(user.Uid), int(user.Gid)))
	}
	if err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	return l, nil
}

func copyFile(from, to string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("%w: run make build", err)
	}
	return os.WriteFile(to, content, 0o755)
}

// Close stops a daemon that still serves the lab, and removes it.
func (l *Lab) Close() error {
	l.command(context.Background(), l.Vrdma, "stop", "--socket", l.Socket).Run() // there may be none
	return os.RemoveAll(l.Dir)
}

// command is a process that ends with us: in a group of its own, killed as one.
func (l *Lab) command(ctx context.Context, argv ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, argv[0], argv[1:]...)
	c.Dir = l.Dir
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: l.User, Pdeathsig: syscall.SIGKILL}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = time.Second
	return c
}

// Under is argv with the device.
func (l *Lab) Under(argv ...string) []string {
	return append([]string{l.Vrdma, "run", "--quiet", "--socket", l.Socket, "--"}, argv...)
}

// Run runs argv to its end and returns what it printed.
func (l *Lab) Run(ctx context.Context, argv ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, toolTimeout)
	defer cancel()
	var out, diag bytes.Buffer
	c := l.command(ctx, argv...)
	c.Stdout, c.Stderr = &out, &diag
	if err := c.Run(); err != nil {
		return "", failure(ctx, argv, err, out.String()+diag.String())
	}
	return out.String(), nil
}

// Pair runs server, waits until it listens on port, runs client to its end and
// returns what the client printed. A server that stays is stopped.
func (l *Lab) Pair(ctx context.Context, port int, server, client []string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, toolTimeout)
	defer cancel()
	var diag bytes.Buffer
	s := l.command(ctx, server...)
	s.Stdout, s.Stderr = io.Discard, &diag
	if err := s.Start(); err != nil {
		return "", err
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Wait() }()
	defer func() {
		select {
		case <-ended:
		case <-time.After(200 * time.Millisecond): // a moment to leave by itself
			s.Cancel()
			<-ended
		}
	}()
	if err := awaitListener(ctx, port, ended); err != nil {
		s.Cancel()
		return "", failure(ctx, server, err, diag.String())
	}
	return l.Run(ctx, client...)
}

// failure says which tool failed, how, and what it printed last.
func failure(ctx context.Context, argv []string, err error, output string) error {
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return errors.New("interrupted")
	case ctx.Err() != nil:
		err = fmt.Errorf("took longer than %v", toolTimeout)
	}
	if text := lastLines(output, 5); text != "" {
		return fmt.Errorf("%s: %w:\n%s", strings.Join(argv, " "), err, text)
	}
	return fmt.Errorf("%s: %w", strings.Join(argv, " "), err)
}

// errEnded means that a server was gone before it listened.
var errEnded = errors.New("ended before it listened")

// awaitListener waits until somebody listens on the TCP port. It looks at the
// kernel's table: the tools accept only one connection, and that is the client's.
func awaitListener(ctx context.Context, port int, ended chan error) error {
	for {
		if listening(port) {
			return nil
		}
		select {
		case err := <-ended:
			ended <- err // for whoever waits for it
			return errEnded
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func listening(port int) bool {
	const listen = "0A"
	want := fmt.Sprintf(":%04X", port)
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(table)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			words := strings.Fields(line)
			if len(words) > 3 && words[3] == listen && strings.HasSuffix(words[1], want) {
				return true
			}
		}
	}
	return false
}

// freePort is a TCP port that nobody uses.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// perftest runs a pair of a perftest tool over the device.
func (l *Lab) perftest(ctx context.Context, tool string, args ...string) (string, error) {
	port, err := freePort()
	if err != nil {
		return "", err
	}
	// -F: the clock's frequency is nobody's business in a virtual machine.
	server := l.Under(append([]string{tool, "-F", "-p", fmt.Sprint(port)}, args...)...)
	return l.Pair(ctx, port, server, append(slices.Clone(server), "127.0.0.1"))
}

// qperf runs one test of qperf over TCP on loopback.
func (l *Lab) qperf(ctx context.Context, test string, size int, seconds string) (map[string]float64, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	listen := fmt.Sprint(port)
	out, err := l.Pair(ctx, port, []string{"qperf", "-lp", listen},
		[]string{"qperf", "-lp", listen, "127.0.0.1", "-t", seconds, "-uu", "-vs", "-m", fmt.Sprint(size), test})
	if err != nil {
		return nil, err
	}
	return ParseQperf(out)
}
