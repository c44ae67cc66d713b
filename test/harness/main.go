package harness

import (
	"math"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Main is the TestMain of every package that uses this one: it leaves no compiled program
// behind.
func Main(m *testing.M) {
	// Programs must not inherit descriptors that the caller of the tests left open: their own numbers would be higher,
	// and some programs need low ones (netcat: at most 16).
	unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	code := m.Run()
	removeCompiled()
	os.Exit(code)
}

// All reports whether this is the long form of the tests.
func All() bool { return os.Getenv("VRDMA_TEST_ALL") != "" }

// Pick returns short, or long in the long form of the tests.
func Pick[T any](short, long T) T {
	if All() {
		return long
	}
	return short
}

// Device starts a daemon that must hold no more at the end of the test than at its start.
func Device(t testing.TB) *Daemon {
	t.Helper()
	d := Start(t, Options{})
	d.NoLeaks(t)
	return d
}
