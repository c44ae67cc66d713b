package budget

import (
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

func small() Limits {
	return Limits{All: Bill{Files: 100, State: 100}, Others: Bill{Files: 60, State: 60}, User: Bill{Files: 40, State: 50}}
}

// TestLevels reaches each limit of the tree and checks which one the error names.
func TestLevels(t *testing.T) {
	l := New(small())
	a, b := l.User(1000), l.User(1001)
	charge := func(who *Account, n uint64, whose string) {
		t.Helper()
		err := who.Charge(Bill{Files: n})
		var e *Error
		switch {
		case whose == "" && err != nil:
			t.Errorf("%s: %v, want success", who.Name(), err)
		case whose == "":
		case !errors.As(err, &e) || e.Whose != whose || e.Kind != Files || !errors.Is(err, syscall.EMFILE):
			t.Errorf("%s: %v, want the limit of %s on files, EMFILE", who.Name(), err, whose)
		}
	}
	charge(a, 40, "")
	charge(a, 1, "user 1000")
	charge(b, 20, "")
	charge(b, 1, "all users but the daemon's owner together")
	charge(l.Owner(), 40, "") // the reserve
	charge(l.Owner(), 1, "the daemon")
	want := []Usage{
		{"the daemon", Files, 100, 100}, {"all users but the daemon's owner together", Files, 60, 60},
		{"user 1000", Files, 40, 40}, {"user 1001", Files, 20, 40},
	}
	if got := l.Usage(); !slices.Equal(got, want) {
		t.Errorf("lines %v, want %v", got, want)
	}
	a.Refund(Bill{Files: 40})
	charge(b, 20, "")
	charge(b, 1, "user 1001")
}

// TestAllOrNothing: if one part of a bill does not fit, nothing of it is charged.
func TestAllOrNothing(t *testing.T) {
	l := New(small())
	a := l.User(7)
	if err := a.Charge(Bill{Files: 3, State: 51}); err == nil {
		t.Fatal("51 of 50 bytes")
	}
	if got := a.Used(); got != (Bill{}) {
		t.Errorf("a bill that was refused left %v", got)
	}
	if err := a.Charge(Bill{Files: math.MaxUint64}); err == nil {
		t.Error("a charge that overflows was taken")
	}
}

// TestForgets: unused accounts are deleted, and one with a charge is kept.
func TestForgets(t *testing.T) {
	l := New(small())
	for uid := range 100 {
		a := l.User(uid)
		if err := a.Charge(Bill{Files: 1}); err != nil {
			t.Fatal(err)
		}
		a.Drop()
		if l.User(uid) != a {
			t.Fatal("an account that owes something was forgotten")
		}
		a.Refund(Bill{Files: 1})
		a.Drop()
	}
	if n := l.Users(); n != 0 {
		t.Errorf("%d accounts of nobody", n)
	}
	if l.all.used != (Bill{}) || l.others.used != (Bill{}) {
		t.Errorf("left: %v and %v", l.all.used, l.others.used)
	}
}

// TestConcurrent: with concurrent charges the limit holds and the sum is right.
func TestConcurrent(t *testing.T) {
	l := New(small())
	var wg sync.WaitGroup
	for uid := range 8 {
		wg.Go(func() {
			for range 1000 {
				a := l.User(uid)
				if a.Charge(Bill{Files: 9, State: 1}) == nil {
					a.Refund(Bill{Files: 9, State: 1})
				}
				a.Drop()
			}
		})
	}
	wg.Wait()
	if l.all.used != (Bill{}) || l.Users() != 0 {
		t.Errorf("left: %v, %d users", l.all.used, l.Users())
	}
}

func TestNil(t *testing.T) {
	var a *Account
	if err := a.Charge(Bill{Files: math.MaxUint64}); err != nil {
		t.Error(err)
	}
	a.Refund(Bill{Files: 1})
	a.Hold().Drop()
}

// TestErrorFits: the text names the owner of the limit, its kind, the amount and a remedy, and fits into a Welcome.
func TestErrorFits(t *testing.T) {
	for k := range kinds {
		e := &Error{Kind: k, Whose: "all users but the daemon's owner together", Limit: 1 << 40, Used: 1 << 40, Asked: 1}
		text := e.Error()
		if len(text) > 191 || !strings.Contains(text, e.Whose) || !strings.Contains(text, "1099511627776") || kindText[k].do == "" {
			t.Errorf("%d bytes: %s", len(text), text)
		}
		if errno := syscall.Errno(0); !errors.As(e, &errno) || errno == 0 {
			t.Errorf("%v has no errno", k)
		}
	}
}

// TestMachineLimits: on every machine one user has less than all users, those less than the machine, and every limit is
// above 0.
func TestMachineLimits(t *testing.T) {
	for _, m := range []Machine{
		{Files: 1024, Mappings: 65530, Memory: 1 << 30}, {Files: 256, Mappings: 65530, Memory: 512 << 20},
		{Files: math.MaxInt64, Mappings: math.MaxInt64, Memory: math.MaxInt64}, ThisMachine(),
	} {
		l := m.Limits()
		for k := range Devices { // the others have no limits
			if l.User[k] == 0 || l.User[k] >= l.Others[k] || l.Others[k] >= l.All[k] {
				t.Errorf("%+v: %v: user %d, others %d, all %d", m, k, l.User[k], l.Others[k], l.All[k])
			}
		}
		if l.All[Mappings] > m.Mappings || l.All[Files] > m.Files {
			t.Errorf("%+v: more than there is: %v", m, l.All)
		}
	}
}
