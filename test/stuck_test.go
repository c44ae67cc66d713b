package test

import (
	"os"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/harness"
)

// fileServer kills the server of a stuck program's file system, when asked or at the end.
func fileServer(t *testing.T, p *harness.Process) (kill func()) {
	t.Helper()
	p.Printed(t, "begun", minute)
	m := regexp.MustCompile(`server (\d+)`).FindStringSubmatch(p.Output())
	if m == nil {
		t.Fatalf("no server:\n%s", p.Output())
	}
	pid, _ := strconv.Atoi(m[1])
	kill = func() { syscall.Kill(pid, syscall.SIGKILL) }
	t.Cleanup(kill)
	return kill
}

// threads is how many threads the daemon has.
func threads(t *testing.T, d *harness.Daemon) int {
	t.Helper()
	list, err := os.ReadDir("/proc/" + strconv.Itoa(d.PID()) + "/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// The program's memory is in a file of its own file system, which does not answer when the daemon touches the page.
// Others go on, the program's queue pair fails, and after the program is killed the daemon keeps nothing of it,
// although the file system lives on.
func TestStuckMemory(t *testing.T) {
	bin := harness.Compile(t, "stuck")
	for _, what := range []string{"post", "register"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel() // it waits, mostly
			d := harness.Start(t, harness.Options{})
			innocent := startStream(t, d, 0)
			startStream(t, d, 640).finishes(t)
			p := d.Launch(t, bin, what)
			servers := []func(){fileServer(t, p)}
			// All threads that one user may occupy.
			for range 3 {
				servers = append(servers, fileServer(t, d.Launch(t, bin, what)))
			}
			startStream(t, d, 640).finishes(t)
			if what == "post" {
				p.Printed(t, "ended 4", minute) // IBV_WC_LOC_PROT_ERR
				d.Process.Printed(t, "a queue pair fails", minute)
			} else {
				// The program itself may hang, because the kernel holds its mmap_lock meanwhile.
				d.Process.Printed(t, "cannot register memory", minute)
			}
			startStream(t, d, 640).finishes(t)
			p.Signal(syscall.SIGKILL)
			t.Logf("session gone after %v, with %d threads", d.Gone(t, p.PID()).Round(time.Millisecond), threads(t, d))
			startStream(t, d, 640).finishes(t)
			stillRuns(t, innocent)
			if d.Process.Ended(0) {
				t.Fatalf("the daemon died:\n%s", harness.Tail(d.Process.Output(), 60))
			}
			// The daemon ends although a thread is stuck. (Until the file system is gone, the kernel keeps the thread,
			// and an idle process with it.)
			syscall.Kill(d.PID(), syscall.SIGTERM)
			d.Process.Printed(t, "msg=stopped", minute)
			if _, err := os.Stat(d.Socket); !os.IsNotExist(err) {
				t.Errorf("the socket is still there: %v", err)
			}
			for _, kill := range servers {
				kill()
			}
			if code := d.Process.Wait(t, minute); code != 0 {
				t.Errorf("daemon: exit %d, want 0", code)
			}
		})
	}
}
