package guest

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/cable"
	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

// limit is the limit for anything that involves the guest, which is emulated and shares the processors.
const limit = 3 * time.Minute

// The two hosts: ours, and the guest with rxe.
const (
	ourIP4, ourIP6     = "10.77.0.1", "fd00:77::1"
	guestIP4, guestIP6 = "10.77.0.2", "fd00:77::2"
)

func TestMain(m *testing.M) { harness.Main(m) }

// lab is a guest, and a namespace at our end of its cable.
type lab struct {
	guest *Guest
	space *cable.Namespace
	cable *cable.Cable

	witness *witness
	excused atomic.Int64 // failed attempts for which the witness has an excuse
}

// newLab boots a guest.
func newLab(t *testing.T) *lab {
	t.Helper()
	const mtu = 1500
	l := &lab{space: cable.NewNamespace(t), witness: &witness{}}
	l.witness.begin()
	l.guest = Boot(t, Config{Memory: 512, IP4: guestIP4 + "/24", IP6: guestIP6 + "/64", MTU: mtu})
	tap := cable.TAP(t, l.space, "eth0", mtu)
	l.space.Address(t, "eth0", ourIP4+"/24")
	l.space.Address(t, "eth0", ourIP6+"/64")
	l.cable = cable.Connect(t, 1, l.guest.Wire, tap, cable.NewProbe(l.witness.see))
	l.guest.Install(t, workload.Program(t))
	return l
}

// setMTU changes the interfaces at both ends. A daemon reads it when it starts.
func (l *lab) setMTU(t *testing.T, mtu int) {
	t.Helper()
	l.space.IP(t, "link", "set", "eth0", "mtu", strconv.Itoa(mtu))
	l.guest.Run(t, limit, "ip", "link", "set", "eth0", "mtu", strconv.Itoa(mtu))
}

// daemon starts vrdma opposite the guest.
func (l *lab) daemon(t *testing.T, args ...string) *harness.Daemon {
	t.Helper()
	return harness.Start(t, l.options(args...))
}

// options are those of daemon.
func (l *lab) options(args ...string) harness.Options {
	return harness.Options{Addr: ourIP4 + "," + ourIP6, Network: l.space.Path(), Args: args}
}

// pair returns the two hosts of a conversation. v6 selects the addresses of its RDMA traffic.
type pair struct {
	*lab
	ours, guest workload.Host
}

func (l *lab) pair(t *testing.T, d *harness.Daemon, v6 bool) pair {
	t.Helper()
	gid, ip := 0, guestIP4
	if v6 {
		gid, ip = 1, guestIP6
	}
	return pair{
		lab:   l,
		ours:  workload.Host{Machine: d, IP: ourIP4, GID: gid},
		guest: workload.Host{Machine: l.guest, IP: guestIP4, GID: l.guest.gid(t, ip)},
	}
}

// gid returns the index of an address in the guest's GID table.
func (g *Guest) gid(t *testing.T, ip string) int {
	t.Helper()
	b := netip.MustParseAddr(ip).As16()
	var words []string
	for i := 0; i < 16; i += 2 {
		words = append(words, fmt.Sprintf("%02x%02x", b[i], b[i+1]))
	}
	out := g.Run(t, limit, "sh", "-c", "cd /sys/class/infiniband/*/ports/1/gids && grep -l "+strings.Join(words, ":")+" *")
	n, err := strconv.Atoi(strings.TrimSpace(out))
	if err != nil {
		t.Fatalf("the guest's device has no GID for %s: %q", ip, out)
	}
	return n
}

// both runs a workload with either side as the client.
func (p pair) both(t *testing.T, w workload.Workload) {
	t.Run(w.Name+"/guest_client", func(t *testing.T) { p.persist(t, w, p.ours, p.guest) })
	t.Run(w.Name+"/our_client", func(t *testing.T) { p.persist(t, w, p.guest, p.ours) })
}

// attempts is how often a workload may be tried against the guest, if the witness has an excuse each time.
const attempts = 3

// work is a workload, or a managed one.
type work interface {
	Try(t testing.TB, at, from workload.Host, limit time.Duration) error
}

// persist repeats a workload until it succeeds, attempts times at most.
func (p pair) persist(t *testing.T, w work, at, from workload.Host) {
	t.Helper()
	for i := range attempts {
		p.witness.begin()
		before := p.cable.Count().Harmed()
		err := w.Try(t, at, from, limit)
		if err == nil {
			return
		}
		excuse := p.witness.excuse(p.cable.Count().Harmed() > before)
		t.Logf("attempt %d of %d: %s\n%v", i+1, attempts, excuse, err)
		if excuse == "" {
			t.Fatal("there is no excuse: nobody was silent and rxe sent what it should")
		}
		p.excused.Add(1)
	}
	t.Fatalf("failed %d times", attempts)
}
