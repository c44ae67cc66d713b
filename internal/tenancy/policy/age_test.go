package policy

import (
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// If the rules may be older than a policy's maxStaleness, new connections of its NICs are refused, and those of others
// are not.
func TestMaxStaleness(t *testing.T) {
	p := noBatch()
	p.Spec.MaxStaleness = tenant.Duration(5 * time.Minute)
	w := train(p)
	r := w.rules()
	c := ib.Contact{Type: ib.RC, By: ib.Us}
	db, web, slow := r.NIC(key("db")), r.NIC(key("web")), r.NIC(key("slow"))
	address := func(name string) ib.GID {
		for _, n := range w.nics {
			if n.Metadata.Name == name {
				return ib.GIDOf(n.Spec.Addresses[0])
			}
		}
		t.Fatal(name)
		return ib.GID{}
	}
	for _, step := range []struct {
		age  time.Duration
		want bool
	}{{0, true}, {5 * time.Minute, true}, {6 * time.Minute, false}, {0, true}} {
		r.SetAge(step.age)
		if ops, known := web.Judge(address("db"), c); (ops != 0) != step.want || !known {
			t.Errorf("after %v web reaches db: %v", step.age, ops != 0)
		}
		if ops, _ := db.Judge(address("web"), c); (ops != 0) != step.want {
			t.Errorf("after %v db reaches web: %v", step.age, ops != 0)
		}
		if ops, _ := slow.Judge(address("web"), c); ops == 0 {
			t.Errorf("after %v slow, which no such policy is about, does not reach web", step.age)
		}
		if why := web.Why(address("db"), c); !step.want && !strings.Contains(why, "maxStaleness 5m0s") {
			t.Errorf("the reason is %q", why)
		}
	}
}
