// Package test runs what a user would run: stock tools, stock libraries, and C
// programs that look at every promise of the verbs interface, against a daemon
// built from this tree. Each test has a daemon of its own, ends everything it
// started and asks the kernel whether the daemon gave everything back.
//
// Tests run one after the other: every program here polls, and this is meant to
// pass on two cores. VRDMA_TEST_ALL=1 asks for the long form.
package test

import (
	"os"
	"testing"
	"time"

	"vrdma/test/harness"
)

func TestMain(m *testing.M) {
	code := m.Run()
	harness.RemoveCompiled()
	os.Exit(code)
}

// device starts a daemon that must hold nothing more at the end of the test
// than at its beginning.
func device(t *testing.T) *harness.Daemon {
	t.Helper()
	d := harness.Start(t, harness.Options{})
	d.NoLeaks(t)
	return d
}

// pick returns short, or long in the long form of the tests.
func pick[T any](short, long T) T {
	if harness.All() {
		return long
	}
	return short
}

const minute = time.Minute
