package launch

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// testPlace returns a place with a path short enough for a socket.
func testPlace(t *testing.T) Place {
	t.Helper()
	dir, err := os.MkdirTemp("", "launch")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	p, err := At(filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// world is a launcher's environment: a fake daemon that listens on the real socket and claims the
// real place.
type world struct {
	t      *testing.T
	spawns atomic.Int32
	mu     sync.Mutex
	daemon Daemon
	claim  *Claim
	listen net.Listener
}

func (w *world) probe(_ context.Context, p Place) (Daemon, error) {
	conn, err := net.Dial("unix", p.Socket)
	if err != nil {
		return Daemon{}, errors.Join(ErrAbsent, err)
	}
	conn.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.daemon, nil
}

func (w *world) start(p Place, d Daemon) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	claim, err := p.Claim(false)
	if err != nil {
		return err
	}
	listen, err := net.Listen("unix", p.Socket)
	if err != nil {
		return err
	}
	w.daemon, w.claim, w.listen = d, claim, listen
	return nil
}

func (w *world) stop(context.Context, Place) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.listen.Close()
	return w.claim.Release()
}

func (w *world) launcher(p Place) *Launcher {
	return &Launcher{
		Place: p, Version: "new", Protocol: 2,
		Probe: w.probe, Stop: w.stop,
		Spawn: func(_ context.Context, p Place) error {
			w.spawns.Add(1)
			time.Sleep(20 * time.Millisecond) // let the other launcher run
			return w.start(p, Daemon{Pid: os.Getpid(), Version: "new", Protocol: 2, Ephemeral: true})
		},
	}
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestTwoLaunchersShareOneDaemon(t *testing.T) {
	p, w := testPlace(t), &world{t: t}
	defer func() { w.stop(t.Context(), p) }()
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			lease, d, err := w.launcher(p).Ensure(testContext(t))
			if err != nil {
				t.Error(err)
				return
			}
			defer lease.Close()
			if d.Version != "new" {
				t.Errorf("version %q, want new", d.Version)
			}
		})
	}
	group.Wait()
	if n := w.spawns.Load(); n != 1 {
		t.Errorf("%d daemons were started, want 1", n)
	}
}

func TestStaleSocketIsReplaced(t *testing.T) {
	p, w := testPlace(t), &world{t: t}
	listen, err := net.ListenUnix("unix", &net.UnixAddr{Name: p.Socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	listen.SetUnlinkOnClose(false)
	listen.Close()
	lease, _, err := w.launcher(p).Ensure(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	defer w.stop(t.Context(), p)
	lease.Close()
}

func TestDaemonOfAnotherVersion(t *testing.T) {
	tests := []struct {
		name   string
		old    Daemon
		spawns int32
		fails  string
	}{
		{"the same", Daemon{Version: "new", Protocol: 2, Ephemeral: true}, 0, ""},
		{"idle, started for us", Daemon{Version: "old", Protocol: 1, Ephemeral: true}, 1, ""},
		{"idle, compatible, started for us", Daemon{Version: "old", Protocol: 2, Ephemeral: true}, 1, ""},
		{"in use, compatible", Daemon{Version: "old", Protocol: 2, Ephemeral: true, Sessions: 1}, 0, ""},
		{"another protocol, unused", Daemon{Version: "odd", Ephemeral: true, Sessions: Unknown}, 1, ""},
		{"in use", Daemon{Version: "old", Protocol: 1, Ephemeral: true, Sessions: 3}, 0, "vrdma stop when its programs"},
		{"started by a person", Daemon{Version: "old", Protocol: 1}, 0, "is vrdma old, and this is vrdma new"},
		{"started by a person, compatible", Daemon{Version: "old", Protocol: 2}, 0, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p, w := testPlace(t), &world{t: t}
			if err := w.start(p, test.old); err != nil {
				t.Fatal(err)
			}
			defer func() { w.stop(t.Context(), p) }()
			lease, _, err := w.launcher(p).Ensure(testContext(t))
			lease.Close()
			switch {
			case test.fails == "" && err != nil:
				t.Error(err)
			case test.fails != "" && (err == nil || !strings.Contains(err.Error(), test.fails)):
				t.Errorf("error %v, want one with %q", err, test.fails)
			}
			if n := w.spawns.Load(); n != test.spawns {
				t.Errorf("%d daemons were started, want %d", n, test.spawns)
			}
		})
	}
}

func TestClaimIsExclusive(t *testing.T) {
	p := testPlace(t)
	claim, err := p.Claim(false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Claim(false); !errors.Is(err, ErrTaken) {
		t.Errorf("second claim: %v, want ErrTaken", err)
	}
	if err := claim.Release(); err != nil {
		t.Fatal(err)
	}
	claim, err = p.Claim(false)
	if err != nil {
		t.Fatalf("claim after release: %v", err)
	}
	claim.Release()
}

func TestClaimSparesWhatIsNotASocket(t *testing.T) {
	p := testPlace(t)
	if err := os.WriteFile(p.Socket, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Claim(false); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("claim over a file: %v, want a refusal", err)
	}
	if got, _ := os.ReadFile(p.Socket); string(got) != "precious" {
		t.Errorf("the file holds %q now", got)
	}
}

func TestRetireWaitsForLeases(t *testing.T) {
	p, w := testPlace(t), &world{t: t}
	lease, _, err := w.launcher(p).Ensure(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	defer w.stop(t.Context(), p)
	if w.claim.Retire() {
		t.Fatal("retired although a program relies on the daemon")
	}
	lease.Close()
	if !w.claim.Retire() {
		t.Fatal("did not retire although nobody relies on the daemon")
	}
	if _, err := os.Lstat(p.Socket); err == nil {
		t.Error("the socket is still there")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, _, err := w.launcher(p).Ensure(ctx); err == nil {
		t.Error("a launcher did not wait for the retired daemon's end")
	}
}

// A daemon waits for a container that is being started, which holds no lease.
func TestRetireWaitsForTheExpected(t *testing.T) {
	p, w := testPlace(t), &world{t: t}
	lease, _, err := w.launcher(p).Ensure(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	defer w.stop(t.Context(), p)
	if err := p.Expect(time.Minute); err != nil {
		t.Fatal(err)
	}
	lease.Close()
	if w.claim.Retire() {
		t.Fatal("retired although somebody is expected")
	}
	// The deadline has passed, or the clock was set back by more than mostExpected.
	for _, d := range []time.Duration{-time.Second, 24 * time.Hour} {
		if err := p.Expect(d); err != nil {
			t.Fatal(err)
		}
		if p.expected() {
			t.Errorf("somebody is expected for %v", d)
		}
	}
	if !w.claim.Retire() {
		t.Fatal("did not retire although nobody is expected any more")
	}
}

// A daemon whose directory was removed cannot be found any more, and ends.
func TestRetireFromRemovedPlace(t *testing.T) {
	p := Place{Socket: filepath.Join(t.TempDir(), "gone", "s")}
	if err := os.Mkdir(filepath.Dir(p.Socket), 0o700); err != nil {
		t.Fatal(err)
	}
	claim, err := p.Claim(true)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Dir(p.Socket)); err != nil {
		t.Fatal(err)
	}
	if !claim.Retire() {
		t.Error("did not retire from a place that is gone")
	}
	if err := claim.Release(); err != nil {
		t.Errorf("release of a place that is gone: %v", err)
	}
}

func TestUnknownDaemonInUseIsSpared(t *testing.T) {
	p, w := testPlace(t), &world{t: t}
	if err := w.start(p, Daemon{Version: "odd", Ephemeral: true, Sessions: Unknown}); err != nil {
		t.Fatal(err)
	}
	defer w.stop(t.Context(), p)
	other, err := lockFile(p.lease(), unix.LOCK_SH)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, _, err := w.launcher(p).Ensure(testContext(t)); err == nil || w.spawns.Load() != 0 {
		t.Errorf("error %v and %d daemons started, want a refusal", err, w.spawns.Load())
	}
}

func TestEphemeral(t *testing.T) {
	p := testPlace(t)
	if p.Ephemeral() {
		t.Error("ephemeral, although nobody claimed it")
	}
	for _, want := range []bool{true, false} {
		claim, err := p.Claim(want)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Ephemeral(); got != want {
			t.Errorf("ephemeral %v, want %v", got, want)
		}
		claim.Release()
	}
}

// A stopped daemon leaves an empty directory, unless programs still hold its lease.
func TestReleaseLeavesNothing(t *testing.T) {
	for _, held := range []bool{false, true} {
		p, w := testPlace(t), &world{t: t}
		lease, _, err := w.launcher(p).Ensure(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		want := 1
		if !held {
			lease.Close()
			want = 0
		}
		if err := w.stop(t.Context(), p); err != nil {
			t.Error(err)
		}
		left, err := os.ReadDir(filepath.Dir(p.Socket))
		if err != nil || len(left) != want {
			t.Errorf("lease held %v: left %v, %v, want %d files", held, left, err, want)
		}
		lease.Close()
	}
}
