package budget

import (
	"testing"
	"time"
)

func TestPace(t *testing.T) {
	now := time.Unix(1, 0)
	p := new(Pace)
	for range 1000 {
		if !p.Try(now) || p.Wait(now) != 0 {
			t.Fatal("a pace without a rate holds something up")
		}
	}
	p.Set(10)
	n := 0
	for p.Try(now) {
		n++
	}
	if n != 10 {
		t.Errorf("%d at once, want one second's worth, 10", n)
	}
	now = now.Add(300 * time.Millisecond)
	for n = 0; p.Try(now); n++ {
	}
	if n != 3 {
		t.Errorf("%d after 0.3 s, want 3", n)
	}
	for i := 1; i <= 5; i++ {
		if got, want := p.Wait(now), time.Duration(i)*100*time.Millisecond; got != want {
			t.Errorf("waiter %d waits %v, want %v", i, got, want)
		}
	}
	if now = now.Add(time.Hour); !p.Try(now) {
		t.Error("nothing passes after an hour")
	}
	var none *Pace
	if !none.Try(now) || none.Wait(now) != 0 {
		t.Error("no pace holds something up")
	}
}

// A tenant's quota bounds all of its users together, the daemon's limits bound the tenant, and nothing is left of a
// deleted tenant.
func TestTenants(t *testing.T) {
	l := New(Limits{All: Bill{State: 100}, Others: Bill{State: 80}, User: Bill{State: 40}})
	red := l.Tenant("red", Bill{QueuePairs: 3})
	one, two := red.User(1), red.User(2)
	bill := Bill{State: 1, QueuePairs: 1}
	for _, a := range []*Account{one, one, two} {
		if err := a.Charge(bill); err != nil {
			t.Fatal(err)
		}
	}
	err := two.Charge(bill)
	if e, ok := err.(*Error); !ok || e.Kind != QueuePairs || e.Whose != "tenant red" {
		t.Errorf("the fourth queue pair: %v, want the quota of tenant red", err)
	}
	l.Tenant("red", Bill{QueuePairs: 4}).Drop()
	if err := two.Charge(bill); err != nil {
		t.Errorf("after the quota was raised: %v", err)
	}
	// Another tenant, and the same user without a tenant, have their own accounts.
	blue := l.Tenant("blue", Bill{})
	for _, a := range []*Account{blue.User(1), l.User(1)} {
		for range 40 {
			if err := a.Charge(Bill{State: 1}); err != nil && a.Name() != "user 1" {
				t.Fatalf("%s: %v", a.Name(), err)
			}
		}
		a.Refund(a.Used())
		a.Drop()
	}
	blue.Drop()
	one.Refund(Bill{State: 2, QueuePairs: 2})
	two.Refund(Bill{State: 2, QueuePairs: 2})
	one.Drop()
	two.Drop()
	red.Drop()
	if len(l.tenants) != 0 || l.Users() != 0 || l.all.used != (Bill{}) {
		t.Errorf("%d tenants, %d users and %v are left", len(l.tenants), l.Users(), l.all.used)
	}
}
