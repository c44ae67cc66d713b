package testbed

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// MPI ranks leave the process group of their parent, and are found by their control group.
func TestDoing(t *testing.T) {
	a := newAccounting()
	if a == nil {
		t.Skip("this machine lets us make no control groups")
	}
	defer a.close()
	a.SetRole("client")
	defer a.SetRole("")
	c := exec.CommandContext(t.Context(), "sh", "-c", "sleep 1001 & sleep 1002 & while :; do :; done")
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	begin, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer begin.Close()
	c.Args[2] = "read go; " + c.Args[2]
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
		c.Wait()
		// We cannot wait for its children, and their group cannot be removed before they end.
		for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			left, err := os.ReadFile(filepath.Join(a.parent, "client", "cgroup.procs"))
			if err != nil || len(left) == 0 {
				return
			}
			if time.Now().After(end) {
				t.Errorf("left in the control group: %s", left)
				return
			}
		}
	}()
	a.charge(c.Process.Pid)
	fmt.Fprintln(begin, "go")
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		got := a.activity(-1)
		if strings.Contains(got, "sleep (2, of which 0 run) had 0.0 s of processor time") && strings.Contains(got, "sh (1, of which 1 run)") {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("doing: %q", got)
		}
	}
}
