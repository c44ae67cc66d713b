package budget

import "testing"

func TestQuotas(t *testing.T) {
	l := New(Limits{All: Bill{Memory: 1000, QueuePairs: 0}, Others: Bill{Memory: 1000}, User: Bill{Memory: 1000}})
	a := l.Tenant("red", Bill{Memory: 100, QueuePairs: 7})
	defer a.Drop()
	if err := a.Charge(Bill{Memory: 40}); err != nil {
		t.Fatal(err)
	}
	defer a.Refund(Bill{Memory: 40})
	want := map[string][2]uint64{"memory": {40, 100}, "queuePairs": {0, 7}, "devices": {0, 0}, "completionQueues": {0, 0}, "rings": {0, 0}, "connections": {0, 0}}
	got := l.Quotas()
	if len(got) != len(want) {
		t.Errorf("got %+v", got)
	}
	for _, q := range got {
		if w := want[q.Kind]; q.Tenant != "red" || q.Used != w[0] || q.Limit != w[1] {
			t.Errorf("got %+v, want %v", q, w)
		}
	}
	if (*Ledger)(nil).Quotas() != nil {
		t.Error("no ledger has quotas")
	}
}
