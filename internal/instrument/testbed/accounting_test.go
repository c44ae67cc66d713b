package testbed

import (
	"testing"
	"time"
)

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		text string
		want time.Duration
		bad  bool
	}{
		{"123456789\n", 123456789, false},                                     // cpuacct.usage
		{"usage_usec 1500\nuser_usec 1000\n", 1500 * time.Microsecond, false}, // cpu.stat
		{"", 0, true}, {"usage_usec x\n", 0, true},
	} {
		if got, err := parseUsage(c.text); got != c.want || (err != nil) != c.bad {
			t.Errorf("%q: %v, %v, want %v", c.text, got, err, c.want)
		}
	}
}

// TestAccounts: the processor time of a role's programs is in its group, where groups can be made.
func TestAccounts(t *testing.T) {
	a := newAccounting()
	if a == nil {
		if (*Accounting)(nil).usage() != nil {
			t.Error("no account has used something")
		}
		return // this user may make no control groups
	}
	defer a.close()
	l := &Lab{Dir: t.TempDir(), Accounting: a}
	before := a.usage()
	a.SetRole("client")
	// A program is charged after its start, and may not end before.
	const charged = "n=0; until grep -q vrdma-account /proc/self/cgroup; do n=$((n+1)); [ $n -lt 5000 ] || exit 1; done; "
	s, err := l.Start(t.Context(), []string{"sh", "-c", charged + "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Wait(); err != nil {
		t.Fatal(err)
	}
	after := a.usage()
	if after["client"] <= before["client"] || after["server"] != before["server"] {
		t.Errorf("by group: %v, then %v, want time of the client only", before, after)
	}
}
