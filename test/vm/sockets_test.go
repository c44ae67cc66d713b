package vm

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/guest"
	"vrdma.dev/vrdma/test/harness"
)

// socketPrograms are put into the machines for sockets: redis-server is another name of redis-check-rdb.
var socketPrograms = []string{"curl", "socat", "redis-cli", "redis-check-rdb"}

// addSocketPrograms puts programs and their libraries into a root.
func addSocketPrograms(t *testing.T, root string) {
	t.Helper()
	harness.Need(t, socketPrograms...)
	script := `set -e; cd "$1"; shift; mkdir -p usr/bin
		for p in "$@"; do p=$(command -v "$p"); cp "$p" usr/bin/
			for lib in $(ldd "$p" | grep -oE ' /lib/[^ ]+'); do mkdir -p usr$(dirname $lib); cp -L $lib usr$lib; done; done
		ln -sf redis-check-rdb usr/bin/redis-server
		for lib in /usr/lib/*/rsocket; do mkdir -p .$lib; cp -L $lib/librspreload.so .$lib/; done`
	if out, err := exec.Command("sh", append([]string{"-c", script, "sh", root}, socketPrograms...)...).CombinedOutput(); err != nil {
		t.Fatalf("add programs: %v\n%s", err, out)
	}
}

// over starts a program with its sockets over RDMA.
func (m *machine) over(t *testing.T, argv ...string) *guest.Process {
	t.Helper()
	return m.Launch(t, m.sockets(argv...)...)
}

// sockets is the command of such a program.
func (m *machine) sockets(argv ...string) []string {
	return append([]string{"env", "VRDMA_SOCKET=" + m.socket, home + "/vrdma", "run", "-q", "--sockets", "--"}, argv...)
}

// sockets runs socket programs over RDMA, within a machine and between two. The device's counters show that it carried
// the bytes.
func sockets(t *testing.T, d *harness.Daemon, a, b *machine) {
	carried := func(t *testing.T, nic string, bytes uint64, f func()) {
		t.Helper()
		before := sent(t, d, nic)
		f()
		var now uint64
		if !harness.Poll(limit, func() bool { now = sent(t, d, nic); return now-before >= bytes }) {
			t.Errorf("the NIC %s sent %d bytes, want %d at least", nic, now-before, bytes)
		}
	}
	for _, pair := range []struct {
		name           string
		client, server *machine
	}{{"within", a, a}, {"between", a, b}} {
		t.Run("iperf3_"+pair.name, func(t *testing.T) {
			server := pair.server.over(t, "iperf3", "-s", "-1")
			carried(t, pair.client.nic, 1<<20, func() {
				client, took := retry(t, pair.client, server, "iperf3", "-c", pair.server.ip, "-t", "2")
				t.Logf("it took %v\n%s", took, harness.Tail(client.Output(), 4))
			})
			done(t, server)
		})
	}
	t.Run("curl", func(t *testing.T) {
		b.Run(t, limit, "sh", "-c", `head -c 5000000 /dev/urandom >/tmp/body
			printf 'HTTP/1.0 200 OK\r\nContent-Length: 5000000\r\n\r\n' | cat - /tmp/body >/tmp/response`)
		want := strings.Fields(b.Run(t, limit, "sha256sum", "/tmp/body"))[0]
		server := b.over(t, "socat", "TCP-LISTEN:8080", "EXEC:cat /tmp/response")
		carried(t, b.nic, 5_000_000, func() {
			retry(t, a, server, "curl", "-sS", "-o", "/tmp/file", "http://"+b.ip+":8080/file")
		})
		if got := strings.Fields(a.Run(t, limit, "sha256sum", "/tmp/file"))[0]; got != want {
			t.Errorf("the file has sum %s, want %s", got, want)
		}
	})
	t.Run("redis", func(t *testing.T) {
		server := b.over(t, "redis-server", "--bind", "0.0.0.0", "--protected-mode", "no", "--port", "6379", "--save", "")
		retry(t, a, server, "redis-cli", "-h", b.ip, "ping")
		carried(t, a.nic, 1<<20, func() {
			a.Run(t, limit, "sh", "-c", "head -c 1048576 /dev/zero | tr '\\0' x | "+strings.Join(a.sockets("redis-cli", "-h", b.ip, "-x", "set", "key"), " "))
		})
		client, _ := retry(t, a, server, "redis-cli", "-h", b.ip, "strlen", "key")
		if !strings.Contains(client.Output(), "1048576") {
			t.Errorf("redis has a key of length %q", client.Output())
		}
	})
}

// retry runs a client until its server listens.
func retry(t *testing.T, m *machine, server *guest.Process, argv ...string) (*guest.Process, time.Duration) {
	t.Helper()
	for try := 0; ; try++ {
		start := time.Now()
		c := m.over(t, argv...)
		if c.Ended(limit) && c.Code() == 0 {
			return c, time.Since(start)
		}
		if !c.Ended(0) || server.Ended(0) || try == 50 {
			t.Fatalf("client: %s\n%s\nserver: %s\n%s", c.Fate(), c.Output(), server.Fate(), server.Output())
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// sent is how many bytes of payload a NIC has sent.
func sent(t *testing.T, d *harness.Daemon, nic string) uint64 {
	t.Helper()
	for _, n := range d.Status(t).NICs {
		if n.Tenant+"/"+n.NIC == nic {
			return n.Used["transmit_bytes"]
		}
	}
	return 0
}
