package harness

import (
	"strconv"
	"strings"
	"testing"
)

// portCounters is the directory with a device's traffic counters.
const portCounters = "/sys/class/infiniband/rxe0/ports/1/counters/"

// Traffic is what the device has sent.
type Traffic struct{ Bytes, Packets uint64 }

// Traffic reads the device's counters from its files, as monitoring tools do, in a program that has the device.
func (d *Daemon) Traffic(t testing.TB) Traffic {
	t.Helper()
	p := d.Launch(t, "cat", portCounters+"port_xmit_data", portCounters+"port_xmit_packets")
	p.OK(t, patience)
	words := strings.Fields(p.Stdout())
	if len(words) != 2 {
		t.Fatalf("port_xmit_data and port_xmit_packets hold %q, want two numbers", p.Stdout())
	}
	data, err := strconv.ParseUint(words[0], 10, 64)
	if err != nil {
		t.Fatalf("port_xmit_data: %v", err)
	}
	packets, err := strconv.ParseUint(words[1], 10, 64)
	if err != nil {
		t.Fatalf("port_xmit_packets: %v", err)
	}
	return Traffic{Bytes: 4 * data, Packets: packets} // the file counts units of four bytes
}

// Carried fails the test unless f made the device send at least n bytes. This proves that RDMA carried the data, and
// not a fallback.
func (d *Daemon) Carried(t testing.TB, least Traffic, f func()) {
	t.Helper()
	before := d.Traffic(t)
	f()
	if t.Failed() {
		return
	}
	after := d.Traffic(t)
	moved := Traffic{after.Bytes - before.Bytes, after.Packets - before.Packets}
	if moved.Bytes < least.Bytes || moved.Packets < least.Packets {
		t.Errorf("the device sent %d bytes in %d packets, want at least %d in %d: the data went another way",
			moved.Bytes, moved.Packets, least.Bytes, least.Packets)
	}
}
