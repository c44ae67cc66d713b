package test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/test/harness"
)

// stream is a running pair of testdata/stream.c.
type stream struct{ server, client *harness.Process }

func startStream(t *testing.T, d *harness.Daemon, messages int) stream {
	t.Helper()
	bin := harness.Compile(t, "stream")
	port := strconv.Itoa(harness.FreePort(t))
	n, _ := strconv.Atoi(port)
	s := stream{server: d.Launch(t, bin, "server", port)}
	harness.Listening(t, s.server, n, minute)
	s.client = d.Launch(t, bin, "client", port, strconv.Itoa(messages))
	s.client.Printed(t, "running", minute)
	return s
}

func (s stream) finishes(t *testing.T) {
	t.Helper()
	if out := s.client.OK(t, minute); !strings.Contains(out, "done ") {
		t.Errorf("client: want \"done\", got:\n%s", out)
	}
	s.server.OK(t, minute)
}

// retryExceeded waits until the survivor of a pair has noticed that its peer is gone.
func retryExceeded(t *testing.T, p *harness.Process) {
	t.Helper()
	const retryExc = 12 // IBV_WC_RETRY_EXC_ERR
	out := p.OK(t, minute)
	if !strings.Contains(out, fmt.Sprintf("failed %d ", retryExc)) {
		t.Errorf("the survivor: want \"failed %d\" (RETRY_EXC_ERR), got:\n%s", retryExc, out)
	}
}

// A process is killed in the middle of a transfer: its session ends, its peer gets the error that a NIC would give, and
// other pairs are not disturbed.
func TestKilledProcess(t *testing.T) {
	for _, victim := range []string{"client", "server", "both"} {
		t.Run(victim, func(t *testing.T) {
			d := harness.Device(t)
			innocent := startStream(t, d, 0)
			hit := startStream(t, d, 0)
			victims := map[string][]*harness.Process{
				"client": {hit.client}, "server": {hit.server}, "both": {hit.client, hit.server},
			}[victim]
			for _, p := range victims {
				p.Signal(syscall.SIGKILL)
			}
			for _, p := range victims {
				t.Logf("session gone after %v", d.Gone(t, p.PID()).Round(time.Millisecond))
			}
			if victim == "server" {
				retryExceeded(t, hit.client)
			}
			if victim == "client" && hit.server.Wait(t, minute) != 0 {
				// The server answers every 64th message. It fails on its own send, or sees that the socket closes; both
				// are a clean end.
				t.Errorf("server after its client died:\n%s", hit.server.Output())
			}
			stillRuns(t, innocent)
		})
	}
}

// stillRuns fails unless the endless pair is alive; then it ends it.
func stillRuns(t *testing.T, s stream) {
	t.Helper()
	for _, p := range []*harness.Process{s.client, s.server} {
		if p.Ended(0) {
			t.Errorf("the innocent pair ended:\n%s", p.Output())
		}
	}
	s.client.Signal(syscall.SIGKILL)
	s.server.Signal(syscall.SIGKILL)
	s.client.Ended(minute)
	s.server.Ended(minute)
}

// Twenty kills at random moments of connecting, registering and transferring.
func TestKilledAnyTime(t *testing.T) {
	d := harness.Device(t)
	bin := harness.Compile(t, "regions")
	for i := range harness.Pick(20, 200) {
		p := d.Launch(t, bin, "reuse_after_free")
		time.Sleep(time.Duration(i*7%100) * time.Millisecond)
		p.Signal(syscall.SIGKILL)
		p.Ended(minute)
	}
	d.Run(t, minute, bin, "heap")
}

// A stopped process delays only its own peers.
func TestStoppedProcess(t *testing.T) {
	d := harness.Device(t)
	stopped := startStream(t, d, 0)
	stopped.server.Signal(syscall.SIGSTOP)
	startStream(t, d, 20000).finishes(t)
	stopped.server.Signal(syscall.SIGCONT)
	t.Run("both_sides", func(t *testing.T) {
		both := startStream(t, d, 0)
		both.server.Signal(syscall.SIGSTOP)
		both.client.Signal(syscall.SIGSTOP)
		startStream(t, d, 20000).finishes(t)
		both.server.Signal(syscall.SIGKILL)
		both.client.Signal(syscall.SIGKILL)
	})
	t.Run("foreign_memory", func(t *testing.T) {
		// A stopped process has registered its stack, which the daemon reaches by copying. No other process waits then,
		// either.
		p := d.Launch(t, harness.Compile(t, "errors"), "rnr_for_ever_until_receive")
		p.Signal(syscall.SIGSTOP)
		startStream(t, d, 5000).finishes(t)
		p.Signal(syscall.SIGCONT)
		p.OK(t, minute)
	})
}

// The daemon is killed: applications get an error at once, and none hangs.
func TestKilledDaemon(t *testing.T) {
	d := harness.Start(t, harness.Options{})
	p := d.Launch(t, harness.Compile(t, "fatal"))
	p.Printed(t, "ready", minute)
	syscall.Kill(d.PID(), syscall.SIGKILL)
	if out := p.OK(t, 2*minute); !strings.Contains(out, "ok after") {
		t.Errorf("want \"ok after\", got:\n%s", out)
	}
	t.Run("perftest", func(t *testing.T) {
		d := harness.Start(t, harness.Options{})
		port := harness.FreePort(t)
		args := []string{"ib_send_bw", "-F", "-D", "30", "-f", "0", "-p", strconv.Itoa(port)}
		s := d.Launch(t, args...)
		harness.Listening(t, s, port, minute)
		c := d.Launch(t, append(args, "127.0.0.1")...)
		before := d.Traffic(t)
		if !harness.Poll(minute, func() bool { return d.Traffic(t).Bytes > before.Bytes+1<<20 || c.Ended(0) }) {
			t.Errorf("no data flows\n%s\n%s", s.Output(), c.Output())
		}
		syscall.Kill(d.PID(), syscall.SIGKILL)
		d.Process.Ended(minute)
		// perftest polls for ever in any case. It must at least be killable, and a new daemon must start at the same
		// socket.
		s.Signal(syscall.SIGTERM)
		c.Signal(syscall.SIGTERM)
		if !s.Ended(minute) || !c.Ended(minute) {
			t.Errorf("perftest does not end after the daemon's death and SIGTERM")
		}
		out := harness.At(d.Socket, nil).Run(t, minute, "ibv_devinfo")
		if !strings.Contains(out, "PORT_ACTIVE") {
			t.Errorf("after the daemon's death `vrdma run` must start another at its stale socket, got:\n%s", out)
		}
		stopAuto(t, d.Socket)
	})
}

// A daemon that gets SIGTERM ends with status 0, and its programs get an error as if it had been killed.
func TestStoppedDaemon(t *testing.T) {
	d := harness.Start(t, harness.Options{})
	p := d.Launch(t, harness.Compile(t, "fatal"))
	p.Printed(t, "ready", minute)
	d.Stop(t)
	p.OK(t, 2*minute)
	// Lock files stay, because after a removal two daemons could hold the lock. Directories that containers may have
	// mounted stay too: containers find the next daemon there.
	locks := regexp.MustCompile(`\.(lock|lease|pid)$`)
	err := filepath.WalkDir(filepath.Dir(d.Socket), func(path string, f fs.DirEntry, err error) error {
		if err == nil && !f.IsDir() && !locks.MatchString(f.Name()) || f.IsDir() && strings.HasSuffix(path, ".d") {
			t.Errorf("the daemon left %s behind", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// The daemon runs out of descriptors: programs get an error, and can work again when others end.
func TestDaemonWithFewDescriptors(t *testing.T) {
	d := harness.Device(t)
	idle := d.Footprint(t).FDs
	room := uint64(idle + 50)
	if err := unix.Prlimit(d.PID(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: room, Max: room}, nil); err != nil {
		t.Fatal(err)
	}
	p := d.Launch(t, harness.Compile(t, "crowd"), "40", "2", "5")
	if code := p.Wait(t, minute); code == 0 {
		t.Errorf("40 programs ran with %d descriptors for the daemon", room)
	}
	if !strings.Contains(p.Output(), "too many open files") {
		t.Errorf("want \"too many open files\" among the programs' words, got:\n%s", harness.Tail(p.Output(), 20))
	}
	closed := func() { // what ended programs had
		harness.Poll(minute, func() bool { return d.Footprint(t).FDs <= idle })
	}
	closed()
	startStream(t, d, 640).finishes(t)

	// Without any descriptor left, the daemon still answers a program at once.
	closed()
	none := uint64(d.Footprint(t).FDs)
	if err := unix.Prlimit(d.PID(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: none, Max: room}, nil); err != nil {
		t.Fatal(err)
	}
	p = d.Launch(t, "ibv_devinfo")
	if code := p.Wait(t, minute); code == 0 || !strings.Contains(p.Output(), "open files") {
		t.Errorf("a program with no descriptor left for it ended with status %d, want open files for a reason:\n%s", code, p.Output())
	}
	if err := unix.Prlimit(d.PID(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: room, Max: room}, nil); err != nil {
		t.Fatal(err)
	}
	// The limit was raised before this program started, so the daemon can serve it.
	d.Run(t, minute, "ibv_devinfo")
}

// Many programs start and end: the daemon's own memory does not grow.
func TestDaemonMemory(t *testing.T) {
	d := harness.Device(t)
	processes, regions := harness.Compile(t, "processes"), harness.Compile(t, "regions")
	round := func() {
		d.Run(t, minute, processes, "open_close_many_times")
		d.Run(t, minute, regions, "many_regions")
	}
	for range 3 {
		round()
	}
	before := anonymous(t, d.PID())
	for range harness.Pick(5, 50) {
		round()
	}
	after := anonymous(t, d.PID())
	t.Logf("RssAnon %d KiB, then %d KiB", before, after)
	if after > before+8<<10 {
		t.Errorf("RssAnon grew from %d to %d KiB, want less than 8 MiB more", before, after)
	}
}

// anonymous returns a process's private memory in KiB.
func anonymous(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`RssAnon:\s+(\d+) kB`).FindSubmatch(text)
	if m == nil {
		t.Fatalf("no RssAnon in:\n%s", text)
	}
	n, _ := strconv.Atoi(string(m[1]))
	return n
}
