package harness

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// Daemon is a running `vrdma daemon` and the socket to reach it.
type Daemon struct {
	Socket  string
	Process *Process
	cred    *syscall.Credential
	network string
	dir     string
	binary  string // other than Binary
}

// Options change how a daemon is started.
type Options struct {
	Addr string              // --addr; empty: 127.0.0.1,::1; OwnAddresses: no such flag
	Args []string            // further arguments
	User *syscall.Credential // run daemon and programs as this user
	Wrap []string            // a command to run the daemon under
	Race bool                // a daemon with the race detector, which exits at the first race

	Network string // run daemon and programs in the network namespace with this path
	Binary  string // another build of vrdma, for daemon and commands
}

// Loops is the number of loops of a daemon that a test makes itself: that of VRDMA_LOOPS, which other daemons read.
// Like a daemon it gives each loop one of Go's processors.
var Loops = sync.OnceValue(func() int {
	n, _ := strconv.Atoi(os.Getenv("VRDMA_LOOPS"))
	n = max(n, 1)
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + n - 1)
	return n
})

// OwnAddresses is the Addr of a daemon that has the machine's addresses.
const OwnAddresses = "own"

// Nobody is an unprivileged user.
func Nobody() *syscall.Credential { return &syscall.Credential{Uid: 65534, Gid: 65534} }

// Directory makes a temporary directory with a short name, because the path of a unix socket has at most 107 bytes. It
// belongs to user, if given.
func Directory(t testing.TB, user *syscall.Credential) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "vt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if user != nil {
		if err := os.Chown(dir, int(user.Uid), int(user.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Start builds the product and starts a daemon that lives as long as the test.
func Start(t testing.TB, o Options) *Daemon {
	t.Helper()
	Build(t)
	if o.Addr == "" {
		o.Addr = "127.0.0.1,::1"
	}
	dir := Directory(t, o.User)
	d := &Daemon{Socket: filepath.Join(dir, "vrdma.sock"), cred: o.User, network: o.Network, dir: dir, binary: o.Binary}
	binary := d.Executable()
	if o.Race {
		if out, err := buildRace(); err != nil {
			t.Fatalf("go build -race: %v\n%s", err, out)
		}
		binary = raceBinary()
	}
	argv := append(append([]string{}, o.Wrap...), binary, "daemon", "--socket", d.Socket)
	if o.Addr != OwnAddresses {
		argv = append(argv, "--addr", o.Addr)
	}
	argv = d.inside(append(argv, o.Args...))
	cmd := exec.Command(argv[0], argv[1:]...)
	d.dress(cmd)
	cmd.Env = append(cmd.Env, "GORACE=halt_on_error=1")
	t.Cleanup(d.forgetControl) // after its end, which may be SIGKILL
	d.Process = Spawn(t, cmd)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("daemon's log, last part:\n%s", Tail(d.Process.Output(), 40))
		}
	})
	ready := Poll(patience, func() bool {
		if d.Process.Ended(0) {
			return true
		}
		_, err := protocol.QueryStatus(d.Socket)
		return err == nil
	})
	if !ready || d.Process.Ended(0) {
		_, err := protocol.QueryStatus(d.Socket)
		t.Fatalf("daemon is not ready after %v (its status: %v)\n%s", patience, err, d.Process.Output())
	}
	return d
}

// forgetControl removes the control and tenants' sockets of a killed daemon, and the directory with the last one.
// Otherwise the user's next daemon would remove them. Daemons lock the directory while they change it.
func (d *Daemon) forgetControl() {
	uid := os.Geteuid()
	if d.cred != nil {
		uid = int(d.cred.Uid)
	}
	for _, path := range append(protocol.ControlPlaces(d.Socket, uid), protocol.TenantPlaces(d.Socket, uid)...) {
		dir, err := os.Open(filepath.Dir(path))
		if err != nil {
			continue
		}
		if syscall.Flock(int(dir.Fd()), syscall.LOCK_EX) == nil {
			os.Remove(path)
			os.Remove(dir.Name()) // fails while others have a socket there
		}
		dir.Close()
	}
}

// At returns a daemon that another process started (`vrdma run` itself, for example).
func At(socket string, user *syscall.Credential) *Daemon {
	return &Daemon{Socket: socket, cred: user, dir: filepath.Dir(socket)}
}

// dress gives a command a user's environment, and the user.
func (d *Daemon) dress(cmd *exec.Cmd) {
	for _, v := range os.Environ() {
		if (!strings.HasPrefix(v, "VRDMA_") || strings.HasPrefix(v, "VRDMA_LOOPS=")) && !strings.HasPrefix(v, "LD_PRELOAD=") && !strings.HasPrefix(v, "XDG_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "XDG_RUNTIME_DIR="+d.dir, "XDG_STATE_HOME="+d.dir)
	if d.cred != nil {
		cmd.Env = append(cmd.Env, "HOME="+d.dir)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: d.cred}
		cmd.Dir = d.dir
	}
}

// inside is argv run in the daemon's network namespace.
func (d *Daemon) inside(argv []string) []string {
	if d.network == "" {
		return argv
	}
	return append([]string{"nsenter", "--net=" + d.network, "--"}, argv...)
}

// Stop ends the daemon with SIGTERM and fails the test unless its status is 0.
func (d *Daemon) Stop(t testing.TB) {
	t.Helper()
	syscall.Kill(d.Process.PID(), syscall.SIGTERM)
	if code := d.Process.Wait(t, patience); code != 0 {
		t.Errorf("daemon after SIGTERM: exit %d, want 0\n%s", code, d.Process.Output())
	}
}

// PID of the daemon.
func (d *Daemon) PID() int { return d.Process.PID() }

// Executable is the daemon's vrdma.
func (d *Daemon) Executable() string { return cmp.Or(d.binary, Binary()) }

// Command is `vrdma ARGS…` against this daemon.
func (d *Daemon) Command(args ...string) *exec.Cmd {
	cmd := exec.Command(d.Executable(), args...)
	d.dress(cmd)
	cmd.Env = append(cmd.Env, "VRDMA_SOCKET="+d.Socket)
	return cmd
}

// ProgramCommand is the command that runs argv with an RDMA device.
func (d *Daemon) ProgramCommand(argv ...string) *exec.Cmd { return d.programCommand(nil, argv...) }

func (d *Daemon) programCommand(flags []string, argv ...string) *exec.Cmd {
	run := append([]string{d.Executable(), "run", "--socket", d.Socket}, flags...)
	argv = d.inside(append(append(run, "--"), argv...))
	cmd := exec.Command(argv[0], argv[1:]...)
	d.dress(cmd)
	return cmd
}

// Launch starts argv under `vrdma run`.
func (d *Daemon) Launch(t testing.TB, argv ...string) *Process {
	t.Helper()
	return d.LaunchWith(t, nil, argv...)
}

// LaunchWith is Launch with flags of `vrdma run`.
func (d *Daemon) LaunchWith(t testing.TB, flags []string, argv ...string) *Process {
	t.Helper()
	p := Spawn(t, d.programCommand(flags, argv...))
	p.Name = strings.Join(argv, " ")
	return p
}

// Run runs argv under `vrdma run` to its end and returns what it printed. It
// fails the test on a status other than 0.
func (d *Daemon) Run(t testing.TB, limit time.Duration, argv ...string) string {
	t.Helper()
	return d.Launch(t, argv...).OK(t, limit)
}

// Pair runs a server and, when it listens on port, its client; both must end with status 0.
func (d *Daemon) Pair(t testing.TB, limit time.Duration, port int, server, client []string) (serverOut, clientOut string) {
	t.Helper()
	return Converse(t, port, d, server, d, client).OK(t, limit)
}

// Status returns the daemon's status.
func (d *Daemon) Status(t testing.TB) *protocol.Status {
	t.Helper()
	s, err := protocol.QueryStatus(d.Socket)
	if err != nil {
		t.Fatalf("status of the daemon: %v", err)
	}
	return s
}

// Tail is the last n lines of text.
func Tail(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.Join(lines, "\n")
}

// LoseSecondRequest lets the daemon lose the second connection request that arrives, once. The function that it returns
// ends that.
func (d *Daemon) LoseSecondRequest(t testing.TB) (end func()) {
	t.Helper()
	d.vrdma(t, "fault", "add", "--name", "second-request", "cm-timeout,message=2,direction=in,count=1")
	return func() { d.vrdma(t, "fault", "remove", "second-request") }
}

// vrdma runs a command that must succeed.
func (d *Daemon) vrdma(t testing.TB, args ...string) {
	t.Helper()
	if out, err := d.Command(args...).CombinedOutput(); err != nil {
		t.Fatalf("vrdma %v: %v\n%s", args, err, out)
	}
}
