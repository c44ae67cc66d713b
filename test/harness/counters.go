package harness

import (
	"strconv"
	"strings"
	"testing"
	"time"
)

// portCounters is where every RDMA device shows its traffic.
const portCounters = "/sys/class/infiniband/rxe0/ports/1/counters/"

// Sent is the number of bytes the device has sent, read the way monitoring tools
// read it: from the device's files, by a program that has the device. (The file
// counts in units of four bytes.)
func (d *Daemon) Sent(t testing.TB) uint64 {
	t.Helper()
	out := d.Launch(t, "cat", portCounters+"port_xmit_data")
	out.OK(t, 10*time.Second)
	n, err := strconv.ParseUint(strings.TrimSpace(out.Stdout()), 10, 64)
	if err != nil {
		t.Fatalf("%sport_xmit_data holds %q, want a number", portCounters, out.Stdout())
	}
	return 4 * n
}

// Carried fails the test unless f made the device send at least n bytes: the
// proof that RDMA ran and not some fallback.
func (d *Daemon) Carried(t testing.TB, n uint64, f func()) {
	t.Helper()
	before := d.Sent(t)
	f()
	if t.Failed() {
		return
	}
	if moved := d.Sent(t) - before; moved < n {
		t.Errorf("the device sent %d bytes, want at least %d: the data went another way", moved, n)
	}
}
