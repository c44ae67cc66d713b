package networks

import (
	"os"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/guest"
	"vrdma.dev/vrdma/test/harness"
)

// TestGuestsOnTwoHosts: virtual machines with stock kernels on two hosts, in a network with a program on one of them. TCP,
// and the kernels' rxe with each other and with the program.
func TestGuestsOnTwoHosts(t *testing.T) {
	if os.Getenv("VRDMA_TEST_ALL") == "" {
		t.Skip("two emulated machines and an etcd take more than a minute: the long form has them; test/vmnet has two machines on one host")
	}
	w := newLab(t)
	w.a.declare(t, twoTenants()+object("NIC", "name: program, tenant: red", "network: train, address: 10.1.0.5, host: b"))
	w.a.ready(t, "red/web")
	w.b.ready(t, "red/db", "red/program")
	start := func(h *host, nic string) *guest.Guest {
		return guest.Start(t, guest.Config{Card: strings.Fields(h.must(t, "guest", "args", "--tcg", "-m", "256M", nic))})
	}
	a, b := start(w.a, "red/web"), start(w.b, "red/db")
	a.AwaitStart(t)
	b.AwaitStart(t)

	t.Run("tcp", func(t *testing.T) {
		b.Run(t, 3*minute, "sh", "-c", "mkdir -p /tmp/web && dd if=/dev/urandom of=/tmp/web/file bs=1M count=16 2>/dev/null")
		server := b.Launch(t, "busybox", "httpd", "-f", "-p", "7000", "-h", "/tmp/web")
		b.Await(t, server, 7000)
		want, _, _ := strings.Cut(b.Run(t, 3*minute, "md5sum", "/tmp/web/file"), " ")
		if got := a.Run(t, 3*minute, "sh", "-c", "wget -q -O - http://10.1.0.2:7000/file | md5sum"); !strings.Contains(got, want) {
			t.Errorf("the sum is %s, want %s", got, want)
		}
	})
	// The client retries until its server listens.
	client := func(t *testing.T, g *guest.Guest, to string) {
		t.Helper()
		var p *guest.Process
		if !harness.Poll(3*minute, func() bool {
			p = g.Launch(t, "rping", "-c", "-a", to, "-C", "5", "-v")
			return p.Ended(3*minute) && p.Code() == 0
		}) {
			t.Errorf("rping to %s: %s\n%s", to, p.Fate(), p.Output())
		}
	}
	t.Run("rxe to rxe", func(t *testing.T) {
		b.Launch(t, "rping", "-s", "-a", "10.1.0.2", "-C", "5", "-P")
		client(t, a, "10.1.0.2")
	})
	t.Run("rxe to program", func(t *testing.T) {
		w.b.program(t, "red/program", "rping", "-s", "-a", "10.1.0.5", "-P")
		client(t, a, "10.1.0.5")
	})
}
