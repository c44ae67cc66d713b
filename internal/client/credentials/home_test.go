package credentials

import (
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
)

// A process is seen from its own process namespace and from the daemon's.
func TestSees(t *testing.T) {
	home := func(pid int) *Home {
		h, err := HomeOf(pid)
		if err == nil {
			h.locate(pid) // nothing is known of a process that has ended
		}
		return &h
	}
	me := home(os.Getpid())
	if got := me.Sees(me); got != os.Getpid() {
		t.Errorf("I see myself as %d, want %d", got, os.Getpid())
	}
	cmd := exec.Command("sleep", "60")
	flags := uintptr(syscall.CLONE_NEWPID)
	if os.Getuid() != 0 {
		flags |= syscall.CLONE_NEWUSER
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	inside := home(cmd.Process.Pid)
	if got := inside.Sees(home(cmd.Process.Pid)); got != 1 {
		t.Errorf("the first process of a namespace sees itself as %d, want 1", got)
	}
	if got := inside.Sees(me); got != 0 {
		t.Errorf("from inside, a process outside is seen as %d", got)
	}
	if got := me.Sees(home(cmd.Process.Pid)); got != cmd.Process.Pid {
		t.Errorf("from the daemon's namespace the process is %d, want %d", got, cmd.Process.Pid)
	}
	unknown := &Home{partial: true, numbers: me.numbers}
	if got := unknown.Sees(home(cmd.Process.Pid)); got != 0 {
		t.Errorf("from nobody knows where, a process of another namespace is seen as %d", got)
	}
	cmd.Process.Kill()
	cmd.Wait()
	if got := me.Sees(home(cmd.Process.Pid)); got != 0 {
		t.Errorf("a process that is gone is seen as %d", got)
	}
}

func FuzzNumbers(f *testing.F) {
	f.Add([]byte("Name:\tcat\nNSpid:\t7\t1\nNSpgid:\t7\t1\n"))
	f.Add([]byte("NSpid:\tx\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, err := parseNumbers(b); err != nil && got != nil {
			t.Errorf("%q: %v and %v", b, got, err)
		}
	})
}

func TestNumbers(t *testing.T) {
	got, err := parseNumbers([]byte("Name:\tNSpid: 9\nNSpid:\t70\t1\nNSsid:\t5\n"))
	if err != nil || !slices.Equal(got, []int{70, 1}) {
		t.Errorf("%v, %v; want 70 and 1", got, err)
	}
}
