package testbed

import "testing"

func TestMapped(t *testing.T) {
	for _, c := range []struct {
		name, table string
		want        bool
	}{
		{"no namespace", "         0          0 4294967295\n", true},
		{"one user", "0 1000 1\n", false},
		{"with subordinate ones", "0 1000 1\n1 100000 65536\n", true},
		{"with too few of them", "0 1000 1\n1 100000 65533\n", false},
		{"not readable", "", false},
		{"no table", "what\n", false},
	} {
		if got := mapped(c.table, 65534); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
