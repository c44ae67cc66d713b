package budget

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// While memory is short, users have an eighth of their limits of what the daemon itself holds, and the owner has all.
func TestTight(t *testing.T) {
	var user Bill
	for k := range user {
		user[k] = 800
	}
	all := user
	for k := range all {
		all[k] = 100_000
	}
	l := New(Limits{All: all, Others: all, User: user})
	a, b, owner := l.User(1), l.User(2), l.Owner()
	if err := a.Charge(Bill{State: 500, Rings: 50, Files: 10}); err != nil {
		t.Fatal(err)
	}
	l.SetTight(true)
	for _, c := range []struct {
		name string
		of   *Account
		bill Bill
		ok   bool
	}{
		{"one that holds much", a, Bill{State: 1}, false},
		{"the same, of another kind", a, Bill{Rings: 50}, true},
		{"more of it", a, Bill{Rings: 1}, false},
		{"files are not memory", a, Bill{Files: 500}, true},
		{"registered memory is the program's", a, Bill{Memory: 700}, true},
		{"one that holds little", b, Bill{State: 100}, true},
		{"the owner", owner, Bill{State: 5000, Rings: 5000}, true},
	} {
		err := c.of.Charge(c.bill)
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
		if e := (*Error)(nil); err != nil && (!errors.As(err, &e) || !e.Tight || !errors.Is(err, syscall.ENOMEM) || !strings.Contains(err.Error(), "memory is short") || len(err.Error()) > 191) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	// What is held can be given back, and the limits return.
	a.Refund(Bill{State: 500})
	if err := a.Charge(Bill{State: 100}); err != nil {
		t.Error(err)
	}
	l.SetTight(false)
	if err := a.Charge(Bill{State: 700}); err != nil || l.Tight() {
		t.Errorf("afterwards: %v", err)
	}
	// A tenant's users, too; its quota stays.
	tenant := l.Tenant("red", Bill{State: 300})
	u := tenant.User(7)
	l.SetTight(true)
	if err := u.Charge(Bill{State: 101}); err == nil {
		t.Error("a tenant's user has more than an eighth")
	}
	if err := u.Charge(Bill{State: 100}); err != nil {
		t.Error(err)
	}
}

func TestEpisode(t *testing.T) {
	var e episode
	if e.timeout() != -1 {
		t.Error("it wakes up although nothing happens")
	}
	for i, c := range []struct{ event, changed bool }{{true, true}, {true, false}, {false, true}, {true, true}} {
		if got := e.next(c.event); got != c.changed || e.under != c.event || (e.timeout() > 0) != c.event {
			t.Errorf("%d: changed %v, under %v", i, got, e.under)
		}
	}
}

func TestPressureFiles(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"cgroup": "4:memory:/old\n0::/system.slice/vrdma.service\n", "mountinfo": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n31 1 0:3 / /m rw - cgroup cgroup rw,memory\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"/sys/fs/cgroup/system.slice/vrdma.service/memory.pressure", "/proc/pressure/memory"}
	if got := PressureFiles(dir); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := PressureFiles("/nonexistent"); !slices.Equal(got, want[1:]) {
		t.Errorf("without files: %q", got)
	}
}

// The kernel accepts the trigger, and the watch ends when it is asked to.
func TestWatchPressure(t *testing.T) {
	if _, err := WatchPressure([]string{"/nonexistent", t.TempDir()}); err == nil {
		t.Error("what is not there is watched")
	}
	w, err := WatchPressure(PressureFiles("/proc/self"))
	if err != nil {
		t.Skipf("this kernel reports no pressure: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx, func(bool) {}) }()
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("it does not end")
	}
}
