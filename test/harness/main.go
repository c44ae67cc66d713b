package harness

import (
	"os"
	"testing"
)

// Main is the TestMain of every package that uses this one: it leaves no compiled program
// behind.
func Main(m *testing.M) {
	code := m.Run()
	removeCompiled()
	os.Exit(code)
}

// All reports whether the long form of the tests was asked for.
func All() bool { return os.Getenv("VRDMA_TEST_ALL") != "" }

// Pick returns short, or long in the long form of the tests.
func Pick[T any](short, long T) T {
	if All() {
		return long
	}
	return short
}

// Device starts a daemon that must hold nothing more at the end of the test than at its
// beginning.
func Device(t testing.TB) *Daemon {
	t.Helper()
	d := Start(t, Options{})
	d.NoLeaks(t)
	return d
}
