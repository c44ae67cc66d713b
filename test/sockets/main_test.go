// Package sockets tests `vrdma run --sockets`: ordinary TCP programs, none of them ours
// but one, whose connections go over RDMA through rdma-core's rsockets, with the library of
// this machine and with the newest one. The device's counters decide which way data went.
//
// Tests run one after the other: this is meant to pass on two cores. VRDMA_TEST_ALL=1
// asks for the long form.
package sockets

import (
	"testing"
	"time"

	"vrdma.dev/vrdma/test/harness"
)

const minute = time.Minute

func TestMain(m *testing.M) { harness.Main(m) }
