package harness

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/handover"
	"vrdma.dev/vrdma/internal/state"
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

// A Greeting is the first message of a next daemon.
type Greeting struct {
	Header state.Header `cbor:"1,keyasint,omitempty"`
	Pid    int          `cbor:"2,keyasint,omitempty"`
	Takes  []string     `cbor:"3,keyasint,omitempty"`
}

// Approach begins a handover in the place of a next daemon.
func (d *Daemon) Approach(t testing.TB) *handover.Link {
	t.Helper()
	var c *protocol.Session
	var err error
	// The one before may not have ended yet.
	Poll(patience, func() bool { c, err = protocol.DialHandOver(d.Socket); return err == nil })
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var b [1]byte
	_, fds, err := c.ReadMessage(b[:])
	if err != nil || len(fds) != 1 {
		t.Fatalf("the daemon sent %d descriptors: %v", len(fds), err)
	}
	link, err := handover.Open(os.NewFile(uintptr(fds[0]), "handover"))
	if err != nil {
		t.Fatal(err)
	}
	link.SetDeadline(time.Now().Add(time.Minute))
	return link
}

// FailUpgrade is a next daemon that takes these things over, and ends after a message.
func (d *Daemon) FailUpgrade(t testing.TB, last handover.Kind, takes ...string) {
	t.Helper()
	link := d.Approach(t)
	defer link.Close()
	if err := link.Send(handover.Hello, Greeting{state.Own("test"), os.Getpid(), takes}, nil); err != nil || last == handover.Hello {
		return
	}
	for _, step := range []struct{ gets, sends handover.Kind }{{handover.Offer, handover.Ready}, {handover.State, handover.Restored}} {
		files, err := link.Receive(step.gets, nil)
		handover.CloseAll(files)
		if err != nil {
			t.Fatal(err)
		}
		if last == step.gets {
			return
		}
		if err := link.Send(step.sends, nil, nil); err != nil {
			t.Fatal(err)
		}
		if last == step.sends {
			return
		}
	}
}
