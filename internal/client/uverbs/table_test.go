package uverbs

import "testing"

// Every number that the kernel has, has a row.
func TestTableComplete(t *testing.T) {
	seen := map[string]bool{}
	check := func(c *command, extended bool) {
		if c == nil {
			return
		}
		if seen[c.name] {
			t.Errorf("%s is in the tables twice", c.name)
		}
		seen[c.name] = true
		if c.extended != extended && c.run != nil {
			t.Errorf("%s is in the wrong table", c.name)
		}
		if (c.run == nil) == (c.errno == 0) {
			t.Errorf("%s has to have a handler or an errno", c.name)
		}
	}
	for i, c := range legacyCommands {
		if c == nil {
			t.Errorf("command %d has no row", i)
		}
		check(c, false)
	}
	for _, c := range extendedCommands {
		check(c, true)
	}
}
