// Package leak counts resources that a test could leave open.
package leak

import (
	"os"
	"testing"
)

// Descriptors returns how many descriptors this process has.
func Descriptors(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}
