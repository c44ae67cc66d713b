package schedule

import (
	"slices"
	"testing"

	"vrdma.dev/vrdma/internal/ib"
)

// TestCapped checks that reaching a cap is reported once per second, with the right cap, and that nothing else is reported.
func TestCapped(t *testing.T) {
	for _, c := range []struct {
		tenant, nic, to Rate
		want            string // the cap, of the sender or of the receiver
	}{
		{nic: Rate{Out: 1e8}, want: "the NIC's cap on bytes out"},
		{nic: Rate{MessagesOut: 1000}, want: "the NIC's cap on messages out"},
		{tenant: Rate{Out: 1e8}, want: "the tenant's cap on bytes out"},
		{tenant: Rate{MessagesOut: 1000}, want: "the tenant's cap on messages out"},
		{to: Rate{In: 1e8}, want: "the NIC's cap on bytes in"},
		{to: Rate{MessagesIn: 1000}, want: "the NIC's cap on messages in"},
		{nic: Rate{Out: 1e12}},
		{},
	} {
		w := newWorld(t)
		told := make(map[*NIC][]string)
		var at []ib.Time
		w.s.Capped = func(n *NIC, limit Cap) {
			told[n] = append(told[n], limit.String())
			at = append(at, w.now)
		}
		from := w.nic(w.tenant(TenantParams{Rate: c.tenant}), NICParams{Rate: c.nic}, 2, 1<<20)
		from.to = w.nic(w.tenant(TenantParams{}), NICParams{Rate: c.to}, 1, 0)
		other := w.slow(w.nic(w.tenant(TenantParams{}), NICParams{}, 1, 1<<20), second/1000)
		w.run(second + second/2)
		whose := from.n
		if c.to != (Rate{}) {
			whose = from.to.n
		}
		got := told[whose]
		want := 0
		if c.want != "" {
			want = 2
		}
		if len(got) != want || slices.ContainsFunc(got, func(text string) bool { return text != c.want }) {
			t.Errorf("%+v: %q at %v, want %d times %q", c, got, at, want, c.want)
		}
		if len(at) != len(got) || len(told[other.n]) > 0 {
			t.Errorf("%+v: others are told, too: %v", c, told)
		}
	}
}
