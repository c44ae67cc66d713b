package launch

import (
	"syscall"
	"testing"
)

// asUser runs f with another effective user. The whole process changes: tests that use it
// do not run in parallel.
func asUser(t *testing.T, uid int, f func()) {
	t.Helper()
	if err := syscall.Seteuid(uid); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Seteuid(0); err != nil {
			t.Fatal(err)
		}
	}()
	f()
}
