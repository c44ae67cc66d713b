package provision

import (
	"net/netip"
	"slices"
	"testing"

	"vrdma.dev/vrdma/internal/net/routes"
)

func interfaces(addrs ...string) (out []routes.Interface) {
	for _, a := range addrs {
		out = append(out, routes.Interface{Addr: netip.MustParseAddr(a), Name: "e", Index: 2, MTU: 1500})
	}
	return out
}

// Addresses keep their rows of the GID table; new ones get the first free rows, before loopback's.
func TestArrange(t *testing.T) {
	var rows []row
	for _, c := range []struct {
		use  []string
		want map[string]int
	}{
		{[]string{"127.0.0.1", "::1"}, map[string]int{"127.0.0.1": 0, "::1": 1}},
		{[]string{"10.0.0.1", "127.0.0.1", "::1"}, map[string]int{"10.0.0.1": 0, "127.0.0.1": 2, "::1": 1}},
		{[]string{"10.0.0.1", "10.0.0.2", "fd00::1", "127.0.0.1", "::1"}, map[string]int{"10.0.0.1": 0, "10.0.0.2": 1, "fd00::1": 2, "127.0.0.1": 3, "::1": 4}},
		{[]string{"10.0.0.2", "fd00::1", "127.0.0.1", "::1"}, map[string]int{"10.0.0.2": 1, "fd00::1": 2, "127.0.0.1": 3, "::1": 4}},
		{[]string{"10.0.0.2", "10.0.0.3", "fd00::1", "127.0.0.1", "::1"}, map[string]int{"10.0.0.3": 0, "10.0.0.2": 1, "fd00::1": 2, "127.0.0.1": 3, "::1": 4}},
		{nil, map[string]int{}},
	} {
		rows = arrange(rows, interfaces(c.use...))
		got := make(map[string]int)
		for _, r := range rows {
			got[r.Addr.String()] = r.number
		}
		if len(rows) != len(c.want) || !slices.IsSortedFunc(rows, func(a, b row) int { return a.number - b.number }) {
			t.Errorf("%v: rows %v", c.use, rows)
		}
		for a, n := range c.want {
			if got[a] != n {
				t.Errorf("%v: %s is in row %d, want %d", c.use, a, got[a], n)
			}
		}
	}
}

// A container that changes its addresses for ever does not make the table long.
func TestArrangeBounded(t *testing.T) {
	var rows []row
	a := netip.MustParseAddr("10.0.0.1")
	for i := range 200 {
		var all []routes.Interface
		for range 1 + i%mostOutward {
			a = a.Next()
			all = append(all, routes.Interface{Addr: a})
		}
		for b := netip.MustParseAddr("127.0.0.1"); len(all) < mostOutward+mostLoopback; b = b.Next() {
			all = append(all, routes.Interface{Addr: b})
		}
		use, _ := bounded(rows, usable(all))
		rows = arrange(rows, use)
		if last := rows[len(rows)-1].number; last >= mostOutward+mostLoopback {
			t.Fatalf("row %d is used", last)
		}
	}
}

func TestDiffer(t *testing.T) {
	fresh, gone := differ(arrange(nil, interfaces("10.0.0.1", "10.0.0.2", "127.0.0.1")), interfaces("10.0.0.2", "10.0.0.3", "::1"))
	if !slices.Equal(fresh, []netip.Addr{netip.MustParseAddr("10.0.0.3")}) || !slices.Equal(gone, []netip.Addr{netip.MustParseAddr("10.0.0.1")}) {
		t.Errorf("new %v, gone %v", fresh, gone)
	}
}
