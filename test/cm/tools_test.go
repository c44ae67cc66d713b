package cm

import (
	"bytes"
	"crypto/sha256"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vrdma/test/harness"
	"vrdma/test/workload"
)

// The tools of librdmacm and perftest, on one host.
func TestTools(t *testing.T) {
	_, h := device(t)
	n := pick(50, 1000)
	for _, w := range append(workload.ManagedTools(n), []workload.Managed{
		{Name: "ucmatose/many", Port: 7471, Server: "ucmatose -c 200", Client: "ucmatose -c 200 -s ADDR", Must: "return status 0"},
		{Name: "riostream", Port: 7471, Server: "riostream -T v -S 1000 -C 50 -I 2", Client: "riostream -T v -S 1000 -C 50 -I 2 -s ADDR", Must: "custom"},
		{Name: "riostream/large", Port: 7471, Server: "riostream -T v -S 1000000 -C 10 -I 2", Client: "riostream -T v -S 1000000 -C 10 -I 2 -s ADDR", Must: "custom"},
		{Name: "cmtime", Port: 7471, Server: "cmtime", Client: "cmtime -c 100 -s ADDR", Endless: true},
		{Name: "rping/persistent", Port: 7174, Server: "rping -s -P -V", Client: "rping -c -V -C 20 -a ADDR", Endless: true},
	}...) {
		t.Run(w.Name, func(t *testing.T) { w.Run(t, h, h, minute) })
	}
	six := workload.Host{Machine: h.Machine, IP: "::1"}
	w := workload.Managed{Name: "rping/ipv6", Port: 7174, Server: "rping -s -a :: -v -V -C 20", Client: "rping -c -v -V -a ADDR -C 20", Must: "ping data"}
	t.Run(w.Name, func(t *testing.T) { w.Run(t, six, six, minute) })
}

func TestQperf(t *testing.T) {
	d, _ := device(t)
	s := d.Launch(t, "qperf")
	harness.Listening(t, s, 19765, 15*time.Second)
	for _, what := range []string{"rc_lat", "rc_bw"} {
		out := d.Run(t, minute, "qperf", "-cm1", "-t", "1", "127.0.0.1", what)
		if !strings.Contains(out, "latency") && !strings.Contains(out, "bw") {
			t.Errorf("qperf -cm1 %s printed %q", what, out)
		}
	}
	s.End()
	s.Ended(5 * time.Second)
}

// Two receivers of a multicast group, and one that is not in it.
func TestMulticast(t *testing.T) {
	d, _ := device(t)
	for _, group := range []struct{ name, group, bind string }{{"IPv4", "224.1.2.3", "127.0.0.1"}, {"IPv6", "ff0e::4", "::1"}} {
		t.Run(group.name, func(t *testing.T) {
			var receivers []*harness.Process
			for range 2 {
				receivers = append(receivers, d.Launch(t, "stdbuf", "-oL", "mckey", "-m", group.group, "-b", group.bind))
			}
			for _, r := range receivers {
				r.Printed(t, "joined", 20*time.Second)
			}
			d.Run(t, minute, "mckey", "-m", group.group, "-s", "-b", group.bind)
			for _, r := range receivers {
				if out := r.OK(t, minute); !strings.Contains(out, "data transfers complete") {
					t.Errorf("a receiver printed\n%s", out)
				}
			}
		})
	}
}

// A large file by rcopy arrives as it was.
func TestCopy(t *testing.T) {
	d, h := device(t)
	dir := harness.Directory(t, nil)
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	data := make([]byte, pick(32<<20, 512<<20))
	r := rand.NewChaCha8([32]byte{1})
	r.Read(data)
	if err := os.WriteFile(from, data, 0o600); err != nil {
		t.Fatal(err)
	}
	d.Carried(t, harness.Traffic{Bytes: uint64(len(data))}, func() {
		w := workload.Managed{Name: "rcopy", Port: 7427, Server: "rcopy", Client: "rcopy " + from + " ADDR:" + to, Endless: true}
		w.Run(t, h, h, minute)
	})
	got, err := os.ReadFile(to)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := sha256.Sum256(data), sha256.Sum256(got); !bytes.Equal(a[:], b[:]) {
		t.Errorf("%d bytes arrived with another checksum, of %d", len(got), len(data))
	}
}
