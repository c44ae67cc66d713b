// Package leak counts what a test could leave open.
package leak

import (
	"os"
	"testing"
)

// Descriptors is how many this process has.
func Descriptors(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}
