package harness

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"
)

// StartUpgradable starts a daemon that Upgrade replaces during the test. Its log is a file: the next daemon writes to
// the same output after the first has ended.
func StartUpgradable(t testing.TB, o Options) *Daemon {
	t.Helper()
	log := filepath.Join(Directory(t, o.User), "log")
	o.Wrap = append(o.Wrap, "sh", "-c", `exec "$0" "$@" >>'`+log+`' 2>&1`)
	d := Start(t, o)
	t.Cleanup(func() {
		if out, err := d.Command("stop").CombinedOutput(); err != nil {
			t.Errorf("vrdma stop after the upgrades: %v\n%s", err, out)
		}
		if t.Failed() {
			text, _ := os.ReadFile(log)
			t.Logf("log of the daemons:\n%s", Tail(string(text), 60))
		}
	})
	return d
}

var upgraded = regexp.MustCompile(`^upgraded: pid (\d+), version .*; before: pid (\d+), version .*; programs paused for `)

// Upgrade replaces the daemon by one of the same program. PID is the first daemon's afterwards, too.
func (d *Daemon) Upgrade(t testing.TB) {
	t.Helper()
	before := d.Status(t).Pid
	out, err := d.Command("upgrade").CombinedOutput()
	m := upgraded.FindStringSubmatch(string(out))
	if err != nil || m == nil {
		t.Fatalf("vrdma upgrade: %v\n%s", err, out)
	}
	if now := d.Status(t).Pid; m[1] != strconv.Itoa(now) || m[2] != strconv.Itoa(before) || now == before {
		t.Errorf("the daemon was process %d and is %d; vrdma upgrade says:\n%s", before, now, out)
	}
	if !Poll(patience, func() bool { return syscall.Kill(before, 0) != nil || zombie(before) }) {
		t.Errorf("the old daemon, process %d, is still there", before)
	}
}

// zombie reports whether a process has ended and its parent has not noticed.
func zombie(pid int) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || regexp.MustCompile(`^\d+ \(.*\) [ZX]`).Match(text)
}
