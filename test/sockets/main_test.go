// Package sockets tests `vrdma run --sockets`. The connections of ordinary TCP programs go over
// RDMA through rdma-core's rsockets, with the library of this machine and with the newest one.
// All programs but one are from the distribution. The device's counters prove whether RDMA or
// TCP carried the data.
//
// Tests run one after the other, because they must pass on two processors. VRDMA_TEST_ALL=1
// selects the long form.
package sockets

import (
	"testing"
	"time"

	"vrdma.dev/vrdma/test/harness"
)

const minute = time.Minute

func TestMain(m *testing.M) { harness.Main(m) }
