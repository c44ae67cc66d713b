package harness

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/testkit/locked"
)

// patience is the limit for steps that take a moment on an idle machine. Processors may be few and busy.
const patience = time.Minute

// starts runs its functions on one thread that lives as long as the test binary. The kernel sends a child's
// parent-death signal when the thread that started it ends. This signal stops our daemons if the test binary dies
// without running cleanups.
var starts = sync.OnceValue(func() chan<- func() {
	c := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range c {
			f()
		}
	}()
	return c
})

// Begin starts cmd, which is killed if the test binary dies. cmd.Start with a parent-death signal is not enough: the
// thread that started cmd may end during the test, as threads do that were in another namespace.
func Begin(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	started := make(chan error)
	starts() <- func() { started <- cmd.Start() }
	return <-started
}

// Process is a program that the test started, with its output.
type Process struct {
	Name   string
	cmd    *exec.Cmd
	out    locked.Buffer // stdout and stderr, in the order they came
	stdout locked.Buffer
	done   chan struct{}
	err    error
}

// Spawn starts cmd in its own process group and ends that group when the test is over. Change cmd's Env, Dir or
// credentials before.
func Spawn(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{Name: strings.Join(cmd.Args, " "), cmd: cmd, done: make(chan struct{})}
	cmd.Stdout = &tee{&p.out, &p.stdout}
	cmd.Stderr = &p.out
	cmd.WaitDelay = 10 * time.Second // for who has its output too, or for us
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	if err := Begin(cmd); err != nil {
		t.Fatalf("start %s: %v", p.Name, err)
	}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.Signal(syscall.SIGKILL)
		<-p.done
	})
	return p
}

type tee struct{ a, b *locked.Buffer }

func (w *tee) Write(p []byte) (int, error) {
	w.a.Write(p)
	return w.b.Write(p)
}

// PID of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// CPUTime is the processor time that the process has used, without its children.
func (p *Process) CPUTime(t testing.TB) time.Duration {
	t.Helper()
	if p.Ended(0) {
		return p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
	if err != nil {
		t.Fatal(err)
	}
	// The name, in parentheses, may contain anything.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 13 {
		t.Fatalf("/proc/%d/stat: %q", p.PID(), stat)
	}
	var ticks int64
	for _, field := range fields[11:13] { // utime, stime
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			t.Fatalf("/proc/%d/stat: %v", p.PID(), err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / 100
}

// Output is everything printed so far.
func (p *Process) Output() string { return p.out.String() }

// Stdout is what went to standard output so far.
func (p *Process) Stdout() string { return p.stdout.String() }

// Signal is sent to the whole process group.
func (p *Process) Signal(sig syscall.Signal) { syscall.Kill(-p.PID(), sig) }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Ended waits up to d and reports whether the process has ended.
func (p *Process) Ended(d time.Duration) bool {
	return Within(p.done, d)
}

// Within waits up to d and reports whether done is closed.
func Within(done <-chan struct{}, d time.Duration) bool {
	late := time.NewTimer(d)
	defer late.Stop()
	select {
	case <-done:
		return true
	case <-late.C:
	}
	select { // it may have been both
	case <-done:
		return true
	default:
		return false
	}
}

// Code is the exit status of a process that has ended (-1: killed by a signal).
func (p *Process) Code() int { return p.cmd.ProcessState.ExitCode() }

// Fate says how a process ended, or where it hangs.
func (p *Process) Fate() string {
	if p.Ended(0) {
		return p.cmd.ProcessState.String()
	}
	return "still running, " + p.where()
}

// Wait for the end, at most d, and return the exit code (-1: killed by a signal).
func (p *Process) Wait(t testing.TB, d time.Duration) int {
	t.Helper()
	if !p.Ended(d) {
		where := p.where()
		p.Signal(syscall.SIGKILL)
		t.Fatalf("%s: still running after %v\n%s\noutput:\n%s", p.Name, d, where, p.Output())
	}
	return p.cmd.ProcessState.ExitCode()
}

// OK waits and fails the test unless the program ended with status 0.
func (p *Process) OK(t testing.TB, d time.Duration) string {
	t.Helper()
	if code := p.Wait(t, d); code != 0 {
		t.Fatalf("%s: exit %d (%v), want 0\noutput:\n%s", p.Name, code, p.err, p.Output())
	}
	return p.Output()
}

// Printed waits until the output contains text.
func (p *Process) Printed(t testing.TB, text string, d time.Duration) {
	t.Helper()
	ok := Poll(d, func() bool {
		if strings.Contains(p.Output(), text) {
			return true
		}
		select {
		case <-p.done:
			return true
		default:
			return false
		}
	})
	if !ok || !strings.Contains(p.Output(), text) {
		t.Fatalf("%s: did not print %q within %v\noutput:\n%s", p.Name, text, d, p.Output())
	}
}

// where says what the threads of a stuck process are doing.
func (p *Process) where() string {
	out, _ := exec.Command("sh", "-c", fmt.Sprintf(
		"for t in /proc/%d/task/*; do echo \"$(cat $t/comm) $(cat $t/wchan 2>/dev/null) $(cut -d' ' -f3 $t/stat) syscall $(cut -d' ' -f1-3 $t/syscall 2>/dev/null)\"; done", p.PID())).CombinedOutput()
	return "threads:\n" + string(out)
}

// Poll calls f until it is true or d has passed.
func Poll(d time.Duration, f func() bool) bool {
	for end := time.Now().Add(d); ; {
		if f() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
		time.Sleep(10 * time.Millisecond)
	}
}
