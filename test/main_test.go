// Package test runs what a user would run: stock tools, stock libraries, and C
// programs that look at every promise of the verbs interface, against a daemon
// built from this tree. Each test has a daemon of its own, ends everything it
// started and asks the kernel whether the daemon gave everything back.
//
// Tests run one after the other: every program here polls, and this is meant to
// pass on two cores. VRDMA_TEST_ALL=1 asks for the long form.
package test

import (
	"testing"
	"time"

	"vrdma.dev/vrdma/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

const minute = time.Minute
