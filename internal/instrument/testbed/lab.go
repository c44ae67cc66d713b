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

// ToolTimeout is the limit of one run of one tool.
const ToolTimeout = 90 * time.Second

// A Lab is a private directory with a copy of the product, owned by the user that measures, and the host that we are on. Close removes
// all of it.
type Lab struct {
	Dir      string
	Original string              // path of the binary that was copied
	Vrdma    string              // path of the copy
	User     *syscall.Credential // the user that programs run as; nil: ours
	Here     *Host

	Accounting *Accounting // of the started programs; nil: none

	HostsMade int    // number of hosts made, for their names
	SharedDir string // a directory in shared memory for copied files; empty: not made yet
}

// products are the files beside the binary.
var products = []string{"libvrdma.so", "libvrdma-sockets.so"}

// NewLab copies the product, binary and shared objects, into a new directory. A user who cannot read the original can then run it.
func NewLab(binary string, user *syscall.Credential) (*Lab, error) {
	dir, err := os.MkdirTemp("/tmp", "vrdma-lab") // a short path: it holds a socket
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

// With runs f in a lab, and closes the lab afterwards.
func With(binary string, as *syscall.Credential, f func(*Lab) error) (err error) {
	lab, err := NewLab(binary, as)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := lab.Close(); err == nil {
			err = closeErr
		}
	}()
	return f(lab)
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
	l.Command(context.Background(), l.Vrdma, "stop", "--socket", l.Here.Socket).Run() // there may be no daemon
	if l.SharedDir != "" {
		os.RemoveAll(l.SharedDir)
	}
	return os.RemoveAll(l.Dir)
}

// ownSession is the word before a command that gets a session of its own. It is not the program setsid: that forks, and its child
// would not end with us.
const ownSession = "setsid"

// Command returns a process that ends with us. It has a process group of its own, which is killed as a whole.
func (l *Lab) Command(ctx context.Context, argv ...string) *exec.Cmd {
	session := argv[0] == ownSession
	if session {
		argv = argv[1:]
	}
	c := exec.CommandContext(ctx, argv[0], argv[1:]...)
	c.Dir = l.Dir
	c.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { // the lab has its own copy
		return strings.HasPrefix(v, "VRDMA_LIB=")
	})
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: session, Setpgid: !session, Credential: l.User, Pdeathsig: syscall.SIGKILL}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = time.Second
	return c
}

// Run runs argv to its end and returns its standard output.
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

// Pair runs server, waits until it is ready, runs client to its end and returns the client's standard output. It stops a server that
// does not end.
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
		case <-time.After(200 * time.Millisecond): // time to end by itself
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
		stop() // its output is complete now
		if text := LastLines(said.String(), 3); text != "" {
			err = fmt.Errorf("%w\nits server said:\n%s", err, text)
		}
	}
	return out, err
}

// Timeout is the error of a tool that was stopped after its limit.
func Timeout(limit time.Duration) error { return fmt.Errorf("took longer than %v", limit) }

// ErrInterrupted means that the user interrupted the run.
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

// commandTitle is a command line without the words that only enter a namespace or give it the device.
func commandTitle(argv []string) string {
	for i, word := range slices.Backward(argv) {
		if word == "--" && i < len(argv)-1 {
			argv = argv[i+1:]
			break
		}
	}
	return strings.Join(argv, " ")
}

// ErrEnded means that a server ended before it was ready.
var ErrEnded = errors.New("ended before it was ready")

// Await waits until a server is ready.
func Await(ctx context.Context, ready func() bool, ended chan error) error {
	for !ready() {
		select {
		case err := <-ended:
			ended <- err // for the next receiver
			return ErrEnded
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(2 * time.Millisecond):
		}
	}
	return nil
}

// lastPort is the last port that FreePort returned. The ports are below the kernel's ephemeral ports, and no port is reused before all
// others were: tools that start at the same time do not collide.
var lastPort atomic.Uint32

// FreePort returns an unused TCP port.
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

// LastLines returns the last n lines of a tool's output, for error messages.
func LastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// Sleep sleeps for d, or until ctx ends.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// SettleTime is how long daemons get for the work that is left after many queue pairs were made or destroyed.
const SettleTime = 200 * time.Millisecond

// SharedMemory is the tmpfs that every Linux has.
const SharedMemory = "/dev/shm"
