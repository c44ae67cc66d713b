// Package sockets tests `vrdma run --sockets`: ordinary TCP programs, none of them ours
// but one, whose connections go over RDMA through rdma-core's rsockets, with the library of
// this machine and with the newest one. The device's counters decide which way data went.
//
// Tests run one after the other: this is meant to pass on two cores. VRDMA_TEST_ALL=1
// asks for the long form.
package sockets

import (
	"os"
	"testing"
	"time"

	"vrdma/test/harness"
)

const minute = time.Minute

func TestMain(m *testing.M) {
	code := m.Run()
	harness.RemoveCompiled()
	os.Exit(code)
}

// device starts a daemon that must hold nothing more at the end of the test than at its
// beginning.
func device(t *testing.T) *harness.Daemon {
	t.Helper()
	d := harness.Start(t, harness.Options{})
	d.NoLeaks(t)
	return d
}
