package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// TestVerbs runs every case of the C programs in its own process, against one daemon for each program. The daemon must
// release everything in the end.
func TestVerbs(t *testing.T) {
	for _, program := range []string{"errors", "flush", "queues", "work", "regions", "ordinary", "processes", "order"} {
		t.Run(program, func(t *testing.T) {
			d := harness.Device(t)
			runCases(t, d, program)
		})
	}
}

// runCases runs every case of a C program as a subtest.
func runCases(t *testing.T, d *harness.Daemon, program string) {
	t.Helper()
	bin := harness.Compile(t, program)
	list, err := exec.Command(bin, "list").Output()
	if err != nil {
		t.Fatalf("%s list: %v", bin, err)
	}
	for _, name := range strings.Fields(string(list)) {
		t.Run(name, func(t *testing.T) {
			out := d.Run(t, 2*minute, bin, name)
			if !strings.Contains(out, "ok "+name) {
				t.Errorf("%s %s: got no \"ok\":\n%s", program, name, out)
			}
			for line := range strings.Lines(out) {
				if !strings.HasPrefix(line, "ok ") {
					t.Log(strings.TrimRight(line, "\n"))
				}
			}
		})
	}
}

// A Go program registers memory of its own heap.
func TestGoHeap(t *testing.T) {
	d := harness.Device(t)
	bin := filepath.Join(t.TempDir(), "goheap")
	build := exec.Command("go", "build", "-o", bin, "./testdata/goheap")
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	if out := d.Run(t, 2*minute, bin); !strings.Contains(out, "ok") {
		t.Errorf("got no \"ok\":\n%s", out)
	}
}

// Any number of processes and queue pairs: 100 × 10.
func TestCrowd(t *testing.T) {
	d := harness.Device(t)
	bin := harness.Compile(t, "crowd")
	for _, c := range []struct{ name, processes, qps, messages string }{
		{"2x2", "2", "2", "1000"},
		{"10x10", "10", "10", "50"},
		{"100x10", "100", "10", harness.Pick("5", "100")},
	} {
		t.Run(c.name, func(t *testing.T) {
			out := d.Run(t, 4*minute, bin, c.processes, c.qps, c.messages)
			if !strings.Contains(out, "ok "+c.processes+" processes") {
				t.Errorf("want \"ok %s processes\", got:\n%s", c.processes, out)
			}
		})
	}
}

// A daemon with the race detector serves all programs with many clients, many threads or many failures, and exits at
// the first race.
func TestRaceDetector(t *testing.T) {
	d := harness.Start(t, harness.Options{Race: true})
	d.NoLeaks(t)
	for _, program := range []string{"errors", "flush", "queues", "work"} {
		t.Run(program, func(t *testing.T) { runCases(t, d, program) })
	}
	t.Run("crowd", func(t *testing.T) { d.Run(t, 4*minute, harness.Compile(t, "crowd"), "20", "10", "5") })
	t.Run("hostile", func(t *testing.T) {
		for _, attack := range []string{"scribble", "race_work_requests", "raw_commands", "unmap_regions", "open_flood"} {
			d.Launch(t, harness.Compile(t, "hostile"), attack).Wait(t, minute)
		}
	})
	t.Run("status_while_busy", func(t *testing.T) {
		s := startStream(t, d, 2000)
		harness.Poll(2*minute, func() bool {
			d.Status(t)
			return s.client.Ended(0)
		})
		s.finishes(t)
	})
	t.Run("killed", func(t *testing.T) {
		for range 5 {
			s := startStream(t, d, 0)
			s.client.Signal(syscall.SIGKILL)
			s.server.Signal(syscall.SIGKILL)
		}
	})
}

// The same guarantees hold for an unprivileged user with an unprivileged daemon.
func TestUnprivileged(t *testing.T) {
	d := harness.Start(t, harness.Options{User: harness.Nobody()})
	d.NoLeaks(t)
	t.Run("devinfo", func(t *testing.T) {
		out := d.Run(t, minute, "ibv_devinfo", "-v")
		for _, want := range []string{"rxe0", "PORT_ACTIVE", "RoCE v2"} {
			if !strings.Contains(out, want) {
				t.Errorf("ibv_devinfo -v: want %q in:\n%s", want, out)
			}
		}
	})
	t.Run("pingpong", func(t *testing.T) { pingpong(t, d, "rc", 0, 4096, 1000, []string{"-c"}) })
	t.Run("write_bw", func(t *testing.T) {
		perf(t, d, perfCase{"", "ib_write_bw", "-n 200 -s 65536", 1})
	})
	for _, program := range []string{"regions", "processes"} {
		t.Run(program, func(t *testing.T) { runCases(t, d, program) })
	}
}
