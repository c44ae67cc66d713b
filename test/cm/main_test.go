// Package cm tests the connection manager as programs use it: the stock tools of
// librdmacm and perftest on one host, data verified, many connections, and programs
// that die at the wrong moment. Two hosts are in vrdma.dev/vrdma/test/wire, the kernel's rxe is in
// vrdma.dev/vrdma/test/guest, rdma-core's own tests are in vrdma.dev/vrdma/test.
//
// Tests run one after the other: every program here polls, and this is meant to pass on
// two cores. VRDMA_TEST_ALL=1 asks for the long form.
package cm

import (
	"testing"
	"time"

	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

const minute = time.Minute

func TestMain(m *testing.M) { harness.Main(m) }

// device is harness.Device, and the host that it makes of this machine.
func device(t *testing.T) (*harness.Daemon, workload.Host) {
	t.Helper()
	harness.Need(t, "rping", "ucmatose", "udaddy", "mckey", "rstream", "riostream", "rcopy", "cmtime", "ib_send_bw", "qperf")
	d := harness.Device(t)
	return d, workload.Host{Machine: d, IP: "127.0.0.1"}
}
