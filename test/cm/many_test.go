package cm

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

// TestMany makes 10 000 connections one after the other, and 500 at once. At the end neither the program nor the daemon
// has more descriptors than before.
func TestMany(t *testing.T) {
	_, h := device(t)
	bin := harness.CompileWith(t, "connections", "gcc", "-lrdmacm", "-libverbs")
	const row, open = 10000, 500
	w := workload.Managed{
		Name: "many", Port: 7500, Server: bin + " PORT", Client: fmt.Sprintf("%s PORT ADDR %d %d", bin, row, open), Must: "e",
	}
	w.Run(t, h, h, 10*minute)
}

// A program that dies disconnects: its peer gets the event, and the daemon keeps nothing.
func TestKill(t *testing.T) {
	for _, who := range []string{"server", "client"} {
		t.Run(who, func(t *testing.T) {
			d, _ := device(t)
			s := d.Launch(t, "rping", "-s", "-V")
			d.AwaitManaged(t, s, 7174)
			c := d.Launch(t, "rping", "-c", "-V", "-a", "127.0.0.1")
			if !harness.Poll(minute, func() bool { return d.Established(t) == 2 }) {
				t.Fatalf("not connected: %+v\n%s\n%s", d.Status(t).Connections, s.Output(), c.Output())
			}
			killed, other := s, c
			if who == "client" {
				killed, other = c, s
			}
			killed.Signal(syscall.SIGKILL)
			if !other.Ended(minute) {
				t.Errorf("the other side goes on: %s\n%s", other.Fate(), other.Output())
			}
			d.Unmanaged(t)
		})
	}
}

// Two servers bind the same port: the second gets an error that says why.
func TestAddressInUse(t *testing.T) {
	d, _ := device(t)
	s := d.Launch(t, "rping", "-s", "-a", "127.0.0.1")
	d.AwaitManaged(t, s, 7174)
	p := d.Launch(t, "rping", "-s", "-a", "127.0.0.1")
	if code := p.Wait(t, minute); code == 0 || !strings.Contains(p.Output(), "in use") {
		t.Errorf("exit %d, printed %q; want a complaint that the address is in use", code, p.Output())
	}
	// A connection to a port without a listener is refused at once.
	p = d.Launch(t, "rping", "-c", "-a", "127.0.0.1", "-p", "7999")
	if code := p.Wait(t, minute); code == 0 || !strings.Contains(p.Output(), "REJECTED") {
		t.Errorf("exit %d, printed %q; want REJECTED", code, p.Output())
	}
}
