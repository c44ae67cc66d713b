package test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/test/harness"
)

const someLoops = 3

// loopsOf returns the loop of every process that has a device open.
func loopsOf(t *testing.T, d *harness.Daemon) map[int]int {
	t.Helper()
	of := make(map[int]int)
	for _, s := range d.Status(t).Sessions {
		of[s.Pid] = s.Loop
	}
	return of
}

// lossless checks that the daemon has lost nothing: no timer has expired, and no packet is missing or came twice.
func lossless(t *testing.T, d *harness.Daemon) {
	t.Helper()
	c := d.Status(t).Counters
	for _, name := range []string{"local_ack_timeout_err", "retry_exceeded_err", "send_err", "out_of_seq_request", "duplicate_request"} {
		if c[name] != 0 {
			t.Errorf("counter %s is %d, want 0", name, c[name])
		}
	}
}

// A daemon with several loops places programs that talk with each other on one loop, and others on others. Sessions move
// while their traffic goes on: the programs check every byte, and nothing is lost.
func TestLoops(t *testing.T) {
	d := harness.Start(t, harness.Options{Args: []string{"--loops", strconv.Itoa(someLoops)}})
	d.NoLeaks(t)
	var pairs []stream
	for range 4 {
		pairs = append(pairs, startStream(t, d, 0))
	}
	used := make(map[int]int)
	of := loopsOf(t, d)
	for _, p := range pairs {
		server, client := of[p.server.PID()], of[p.client.PID()]
		if server != client {
			t.Errorf("a server is on loop %d, its client on %d", server, client)
		}
		used[server]++
	}
	if len(used) != someLoops {
		t.Errorf("pairs by loop: %v, want some on each of %d", used, someLoops)
	}
	moves := d.Status(t).Moves
	r := rand.New(rand.NewPCG(1, 2))
	for range harness.Pick(200, 5000) {
		p := pairs[r.IntN(len(pairs))]
		pid := []int{p.server.PID(), p.client.PID()}[r.IntN(2)]
		if err := protocol.MoveProcess(d.Socket, pid, r.IntN(someLoops)); err != nil && !strings.Contains(err.Error(), "try again") {
			t.Fatal(err)
		}
	}
	if n := d.Status(t).Moves - moves; n < 100 {
		t.Errorf("%d sessions have moved", n)
	}
	lossless(t, d)
	for _, p := range pairs {
		stillRuns(t, p)
	}
}

// Operations of every kind, programs that sleep, rdma_cm and sockets go on while their sessions move. Programs that need
// the first loop stay there.
func TestLoopsPrograms(t *testing.T) {
	d := harness.Start(t, harness.Options{Args: []string{"--loops", strconv.Itoa(someLoops)}})
	seconds := harness.Pick("3", "20")
	var running []*harness.Process
	datagrams := make(map[*harness.Process]bool)
	for _, argv := range [][]string{
		{"ib_write_bw", "-F", "-D", seconds}, {"ib_read_bw", "-F", "-D", seconds}, {"ib_atomic_bw", "-F", "-D", seconds},
		{"ib_write_bw", "-F", "-D", seconds, "-c", "UC"}, {"ib_send_bw", "-F", "-D", seconds, "-r", "64", "-q", "4"},
		{"ib_send_bw", "-F", "-e", "-n", "5000", "-s", "4096"}, {"ib_send_bw", "-F", "-D", seconds, "-c", "UD"},
	} {
		port := harness.FreePort(t)
		argv = append(argv, "-p", strconv.Itoa(port))
		s := d.Launch(t, argv...)
		harness.Listening(t, s, port, minute)
		c := d.Launch(t, append(argv[:len(argv):len(argv)], "127.0.0.1")...)
		running = append(running, s, c)
		datagrams[s], datagrams[c] = slices.Contains(argv, "UD"), slices.Contains(argv, "UD")
	}
	port := strconv.Itoa(harness.FreePort(t))
	rping := []string{"rping", "-V", "-a", "127.0.0.1", "-C", "1000", "-S", "500", "-p", port}
	s := d.Launch(t, append(rping, "-s")...)
	n, _ := strconv.Atoi(port)
	d.AwaitManaged(t, s, n)
	running = append(running, s, d.Launch(t, append(rping[:len(rping):len(rping)], "-c")...))
	refused := false
	for left := true; left; time.Sleep(5 * time.Millisecond) {
		left = false
		for _, p := range running {
			if p.Ended(0) {
				continue
			}
			left = true
			err := protocol.MoveProcess(d.Socket, p.PID(), rand.IntN(someLoops))
			if err != nil && strings.Contains(err.Error(), "needs loop 0") {
				if refused = true; !datagrams[p] {
					t.Fatal(err)
				}
			}
		}
	}
	for _, p := range running {
		p.OK(t, minute)
	}
	if !refused {
		t.Error("a program with datagrams was never refused")
	}
	for _, p := range running {
		d.Gone(t, p.PID())
	}
}

// The race detector watches loops that are held, programs that connect and end, and sessions that move.
func TestLoopsRace(t *testing.T) {
	d := harness.Start(t, harness.Options{Race: true, Args: []string{"--loops", strconv.Itoa(someLoops)}})
	steady := startStream(t, d, 0)
	for range harness.Pick(2, 40) {
		p := startStream(t, d, 0)
		for i := range 2 * someLoops {
			for _, pid := range []int{p.client.PID(), steady.server.PID()} {
				if err := protocol.MoveProcess(d.Socket, pid, i%someLoops); err != nil && !strings.Contains(err.Error(), "try again") {
					t.Fatal(err)
				}
			}
		}
		stillRuns(t, p)
	}
	stillRuns(t, steady)
	if d.Process.Ended(0) {
		t.Fatalf("the daemon has ended:\n%s", harness.Tail(d.Process.Output(), 80))
	}
}

// A hostile program on a daemon with several loops harms only itself.
func TestLoopsHostile(t *testing.T) {
	d := harness.Start(t, harness.Options{Args: []string{"--loops", strconv.Itoa(someLoops)}})
	innocent := startStream(t, d, 0)
	for _, attack := range []string{"indices", "scribble", "race_work_requests", "doorbells", "unmap_regions"} {
		p := d.Launch(t, harness.Compile(t, "hostile"), attack)
		p.Wait(t, minute)
		d.Gone(t, p.PID())
	}
	stillRuns(t, innocent)
}

// An upgrade takes sessions of all loops along, to a daemon with another number of loops.
func TestLoopsUpgrade(t *testing.T) {
	config := filepath.Join(t.TempDir(), "vrdma.yaml")
	configure := func(n int) {
		if err := os.WriteFile(config, []byte("loops: "+strconv.Itoa(n)+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	configure(someLoops)
	d := harness.StartUpgradable(t, harness.Options{Args: []string{"--config", config}})
	pairs := []stream{startStream(t, d, 0), startStream(t, d, 0), startStream(t, d, 0)}
	counts := []int{1, 4, 2, someLoops}
	for i := range harness.Pick(4, 40) {
		loops := counts[i%len(counts)]
		configure(loops)
		d.Upgrade(t)
		if n := len(d.Status(t).Loops); n != loops {
			t.Errorf("the daemon has %d loops, want %d", n, loops)
		}
		for k, p := range pairs {
			if err := protocol.MoveProcess(d.Socket, p.client.PID(), k%loops); err != nil && !strings.Contains(err.Error(), "try again") {
				t.Fatal(err)
			}
		}
	}
	lossless(t, d)
	for _, p := range pairs {
		stillRuns(t, p)
	}
}

// What is wrong is said, and what to do.
func TestLoopsMistakes(t *testing.T) {
	d := harness.Start(t, harness.Options{Args: []string{"--loops", "2"}})
	p := startStream(t, d, 0)
	pid := strconv.Itoa(p.client.PID())
	for _, c := range []struct {
		argv []string
		want string
	}{
		{[]string{"loops", "move", pid, "7"}, "there is no loop 7"},
		{[]string{"loops", "move", "1", "1"}, "process 1 has no device open"},
		{[]string{"loops", "move", "x", "1"}, "want the number of a process"},
		{[]string{"loops", "move", pid, "x"}, "want the number of a loop"},
		{[]string{"loops", "move", pid}, "accepts 2 arg"},
	} {
		out, err := d.Command(c.argv...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), c.want) {
			t.Errorf("vrdma %v: %v\n%s\nwant %q", c.argv, err, out, c.want)
		}
	}
	out, err := d.Command("loops").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "LOOP") || !strings.Contains(string(out), "pid "+pid) {
		t.Errorf("vrdma loops: %v\n%s", err, out)
	}
	stillRuns(t, p)
	for _, n := range []string{"0", "65", "many"} {
		out, err := d.Command("daemon", "--loops", n).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "want auto, or a number from 1 to 64") {
			t.Errorf("vrdma daemon --loops %s: %v\n%s", n, err, out)
		}
	}
}
