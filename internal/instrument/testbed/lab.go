package testbed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// ToolTimeout is how long one run of one tool may take before it counts as failed.
const ToolTimeout = 90 * time.Second

// A Lab is a place to measure in: a private directory with a copy of the product,
// perhaps for another user, and the host that we are on. Close leaves nothing of it
// behind.
type Lab struct {
	Dir      string
	Original string              // the binary
	Vrdma    string              // its copy
	User     *syscall.Credential // whom everything runs as; nil: ourselves
	Here     *Host

	Accounting *Accounting // of programs that are started; nil: none

	HostsMade int    // how many were made, for their hosts' names
	SharedDir string // a directory in shared memory, for files that are copied; empty: none yet
}

// products are what lies beside the binary.
var products = []string{"libvrdma.so", "libvrdma-sockets.so"}

// NewLab copies the product, binary and shared objects, into a new directory, so
// that a user who cannot read the original's can run it.
func NewLab(binary string, user *syscall.Credential) (*Lab, error) {
	dir, err := os.MkdirTemp("/tmp", "vrdma-lab") // short: it holds a socket
	if err != nil {
		return nil, err
	}
	l := &Lab{Dir: dir, Original: binary, Vrdma: filepath.Join(dir, "vrdma"), User: user}
	l.Here = &Host{Lab: l, Socket: filepath.Join(dir, "s"), IP: "127.0.0.1"}
	err = copyFile(binary, l.Vrdma)
	for _, library := range products {
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
		return fmt.Errorf("%w: run make build there", err)
	}
	return os.WriteFile(to, content, 0o755)
}

// Close stops a daemon that still serves this host, and removes the lab.
func (l *Lab) Close() error {
	l.Command(context.Background(), l.Vrdma, "stop", "--socket", l.Here.Socket).Run() // there may be none
	if l.SharedDir != "" {
		os.RemoveAll(l.SharedDir)
	}
	return os.RemoveAll(l.Dir)
}

// ownSession is the word before a command that is to have a session of its own. It is not
// the program of that name: that would fork, and what it starts would not end with us.
const ownSession = "setsid"

// Command is a process that ends with us: in a group of its own, killed as one.
func (l *Lab) Command(ctx context.Context, argv ...string) *exec.Cmd {
	session := argv[0] == ownSession
	if session {
		argv = argv[1:]
	}
	c := exec.CommandContext(ctx, argv[0], argv[1:]...)
	c.Dir = l.Dir
	c.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { // the lab has a copy of its own
		return strings.HasPrefix(v, "VRDMA_LIB=")
	})
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: session, Setpgid: !session, Credential: l.User, Pdeathsig: syscall.SIGKILL}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = time.Second
	return c
}

// Run runs argv to its end and returns what it printed.
func (l *Lab) Run(ctx context.Context, argv ...string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, ToolTimeout, Timeout(ToolTimeout))
	defer cancel()
	var out, diag bytes.Buffer
	c := l.Command(ctx, argv...)
	c.Stdout, c.Stderr = &out, &diag
	if err := c.Run(); err != nil {
		return "", Failure(ctx, argv, err, out.String()+diag.String())
	}
	return out.String(), nil
}

// Pair runs server, waits until it is ready, runs client to its end and returns what
// the client printed. A server that stays is stopped.
func (l *Lab) Pair(ctx context.Context, ready func() bool, server, client []string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, ToolTimeout, Timeout(ToolTimeout))
	defer cancel()
	var said bytes.Buffer
	s := l.Command(ctx, server...)
	s.Stdout, s.Stderr = &said, &said
	if err := s.Start(); err != nil {
		return "", err
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Wait() }()
	stop := sync.OnceFunc(func() {
		select {
		case <-ended:
		case <-time.After(200 * time.Millisecond): // a moment to leave by itself
			s.Cancel()
			<-ended
		}
	})
	defer stop()
	if err := Await(ctx, ready, ended); err != nil {
		stop()
		return "", Failure(ctx, server, err, said.String())
	}
	out, err := l.Run(ctx, client...)
	if err != nil {
		stop() // what it says is complete now
		if text := LastLines(said.String(), 3); text != "" {
			err = fmt.Errorf("%w\nits server said:\n%s", err, text)
		}
	}
	return out, err
}

// Timeout is why a tool was stopped.
func Timeout(limit time.Duration) error { return fmt.Errorf("took longer than %v", limit) }

// ErrInterrupted means that the user wants no more.
var ErrInterrupted = errors.New("interrupted")

// Failure says which tool failed, how, and what it printed last.
func Failure(ctx context.Context, argv []string, err error, output string) error {
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, context.Canceled):
		return ErrInterrupted
	case cause != nil:
		err = cause
	}
	if text := LastLines(output, 5); text != "" {
		return fmt.Errorf("%s: %w:\n%s", commandTitle(argv), err, text)
	}
	return fmt.Errorf("%s: %w", commandTitle(argv), err)
}

// commandTitle is the part of a command line that says what runs: not how it got there.
func commandTitle(argv []string) string {
	for i, word := range slices.Backward(argv) {
		if word == "--" && i < len(argv)-1 {
			argv = argv[i+1:]
			break
		}
	}
	return strings.Join(argv, " ")
}

// ErrEnded means that a server was gone before it was ready.
var ErrEnded = errors.New("ended before it was ready")

// Await waits until a server is ready.
func Await(ctx context.Context, ready func() bool, ended chan error) error {
	for !ready() {
		select {
		case err := <-ended:
			ended <- err // for whoever waits for it
			return ErrEnded
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(2 * time.Millisecond):
		}
	}
	return nil
}

// lastPort is the port that freePort gave last. They are below those that the kernel gives to
// whoever connects, and none is given twice before all others were: tools that start at the same
// time do not meet.
var lastPort atomic.Uint32

// FreePort is a TCP port that nobody uses.
func FreePort() (int, error) {
	const first, count = 12000, 18000
	lastPort.CompareAndSwap(0, uint32(os.Getpid()))
	for range 100 {
		port := first + int(lastPort.Add(1)%count)
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			l.Close()
			return port, nil
		}
	}
	return 0, errors.New("no free TCP port found")
}

// LastLines is the end of a tool's output, for messages.
func LastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// Sleep sleeps unless ctx ends.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// SettleTime is for what making or destroying them left to do.
const SettleTime = 200 * time.Millisecond

// SharedMemory is where every Linux has a tmpfs.
const SharedMemory = "/dev/shm"
