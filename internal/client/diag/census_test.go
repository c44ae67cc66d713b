package diag

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/registry"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/peers"
	"vrdma.dev/vrdma/internal/net/roce"
	"vrdma.dev/vrdma/internal/tenancy/meter"
)

// atOnce is a loop that runs every function in the caller.
type atOnce struct {
	asked int
	took  time.Duration
	link  roce.Counters
	out   map[*nic.NIC]ib.Time // throttled
}

func (l *atOnce) Do(f func()) error {
	start := time.Now()
	f()
	l.asked, l.took = l.asked+1, l.took+time.Since(start)
	return nil
}

func (l *atOnce) SetTap(*roce.Tap)            {}
func (l *atOnce) LinkCounters() roce.Counters { return l.link }
func (l *atOnce) LoopOf(*nic.Session) int     { return 0 }

func (l *atOnce) Peers() ([]peers.Status, peers.Counters) { return nil, peers.Counters{} }

func (l *atOnce) Throttled(n *nic.NIC) (out, in ib.Time) { return l.out[n], 0 }

// The time for which caps delayed a NIC is counted.
func TestThrottled(t *testing.T) {
	loop, tab, m := &atOnce{out: make(map[*nic.NIC]ib.Time)}, registry.NewTable(), meter.New()
	c := NewCensus(loop, tab)
	slow := putNIC(t, tab, "red/slow", "red/net")
	putNIC(t, tab, "red/web", "red/net")
	for i := range 5 {
		m.Sample(time.Unix(1_700_000_000+int64(i), 0), c.Read())
		loop.out[slow.Device] += 1000
	}
	for _, total := range m.Totals() {
		want := uint64(0)
		if total.NIC == "slow" {
			want = 4000
		}
		if got := total.Usage[meter.ThrottledOut]; got != want {
			t.Errorf("%v was held up for %d ns, want %d", total.Key, got, want)
		}
	}
}

func putNIC(t *testing.T, tab *registry.Table, name, network string) *registry.NIC {
	t.Helper()
	n := &registry.NIC{Name: name, Network: network, Device: nic.New(nic.Config{Name: "rxe0"})}
	if err := tab.Add(n); err != nil {
		t.Fatal(err)
	}
	return n
}

// NICs are added, count and are removed between two readings. The meter's and the device's sums always equal those of
// the NICs.
func TestCensus(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 3))
	loop, tab, m := &atOnce{}, registry.NewTable(), meter.New()
	c := NewCensus(loop, tab)
	c.look.next = time.Time{}
	var all []*registry.NIC
	truth := map[string]uint64{}
	now, want := time.Unix(1_700_000_000, 0), uint64(0)
	for step := range 300 {
		for range rnd.IntN(4) {
			tenant, name := fmt.Sprint("t", rnd.IntN(3)), fmt.Sprint("n", rnd.IntN(9))
			if tab.Named(tenant+"/"+name) == nil {
				all = append(all, putNIC(t, tab, tenant+"/"+name, tenant+"/net"))
			}
		}
		for i := 0; i < len(all); i++ {
			n := all[i]
			k := uint32(rnd.IntN(1000))
			n.Device.Drop(nic.DropNoQP, k)
			truth[KeyOf(n).Tenant] += uint64(k)
			want += uint64(k)
			if rnd.IntN(5) == 0 {
				tab.Remove(n)
				all = append(all[:i], all[i+1:]...)
				i--
			}
		}
		loop.link.BadICRC++
		if rnd.IntN(3) == 0 {
			continue // several things happen between two readings
		}
		now = now.Add(time.Second)
		m.Sample(now, c.Read())
		got := map[string]uint64{}
		for _, s := range m.Totals() {
			got[s.Tenant] += s.Usage[meter.Drops(nic.DropNoQP)]
			if s.Tenant == meter.System && s.Usage[meter.Drops(nic.DropICRC)] != loop.link.BadICRC {
				t.Fatalf("step %d: nobody's drops: %d of %d", step, s.Usage[meter.Drops(nic.DropICRC)], loop.link.BadICRC)
			}
		}
		for tenant, n := range truth {
			if got[tenant] != n {
				t.Fatalf("step %d: tenant %s has %d, its NICs counted %d", step, tenant, got[tenant], n)
			}
		}
		if sum, _ := c.Device(); sum.Drops[nic.DropNoQP] != want {
			t.Fatalf("step %d: the device has %d, all NICs counted %d", step, sum.Drops[nic.DropNoQP], want)
		}
	}
}

// TestCensusOfFrames: frames through a NIC's port are counted for its tenant, also after the NIC was removed, and not
// for the device.
func TestCensusOfFrames(t *testing.T) {
	loop, tab, m := &atOnce{}, registry.NewTable(), meter.New()
	c := NewCensus(loop, tab)
	n := putNIC(t, tab, "red/a", "red/net")
	var passed registry.Frames
	n.Frames = func() registry.Frames { return passed }
	read := func() meter.Usage {
		t.Helper()
		c.look.next = time.Time{}
		m.Sample(time.Unix(1_700_000_000, 0), c.Read())
		for _, s := range m.Totals() {
			if s.NIC == "a" {
				return s.Usage
			}
		}
		t.Fatal("the NIC is not there")
		return meter.Usage{}
	}
	passed = registry.Frames{Sent: 1, SentBytes: 60, Rcvd: 2, RcvdBytes: 3000}
	passed.Drops[nic.DropSpoof] = 5
	read()
	n.Device.Drop(nic.DropSpoof, 2)
	passed.SentBytes, passed.Sent = 160, 2
	tab.Remove(n)
	passed.Drops[nic.DropPolicy] = 1
	got := read()
	want := meter.Usage{meter.FramesOut: 2, meter.FrameBytesOut: 160, meter.FramesIn: 2, meter.FrameBytesIn: 3000}
	want[meter.Drops(nic.DropSpoof)], want[meter.Drops(nic.DropPolicy)] = 7, 1
	if got != want {
		t.Errorf("%v, want %v", got, want)
	}
	if sum, _ := c.Device(); sum.Drops[nic.DropSpoof] != 2 || sum.Drops[nic.DropPolicy] != 0 {
		t.Errorf("the device dropped %v", sum.Drops)
	}
}

// The loop reads a bounded number of NICs at a time.
func TestCensusInPieces(t *testing.T) {
	loop, tab := &atOnce{}, registry.NewTable()
	const nics = 300
	for i := range nics {
		putNIC(t, tab, fmt.Sprint("red/n", i), "red/net")
	}
	if got := NewCensus(loop, tab).Read(); len(got) != nics+1 {
		t.Fatalf("%d readings", len(got))
	}
	if pieces := nics*perNIC/piece + 1; loop.asked < pieces || loop.asked > pieces+2 {
		t.Errorf("the loop was asked %d times, want about %d", loop.asked, pieces)
	}
}

// administrator is a server without clients, whose callers administer the tenant of this name.
type administrator string

func (administrator) Sessions() []Session                   { return nil }
func (administrator) Programs() []Program                   { return nil }
func (administrator) Recount()                              {}
func (administrator) NICs(*View) []protocol.NICSocket       { return nil }
func (administrator) Containers() map[*registry.NIC]string  { return nil }
func (administrator) Listening()                            {}
func (administrator) Overdrawn(error)                       {}
func (a administrator) Administers(_ *View, of string) bool { return of == string(a) }

// TestUsageOfOthers: a caller other than the owner sees the NIC that it can reach, and no other.
func TestUsageOfOthers(t *testing.T) {
	loop, tab := &atOnce{}, registry.NewTable()
	web, db := putNIC(t, tab, "red/web", "red/net"), putNIC(t, tab, "red/db", "red/net")
	blue := putNIC(t, tab, "blue/web", "blue/net")
	for _, n := range []*registry.NIC{web, db, blue} {
		n.Device.Drop(nic.DropKey, 1)
	}
	d := New(Config{Loop: loop, Clients: administrator(""), NICs: tab, Collector: meter.NewCollector(meter.New(), NewCensus(loop, tab).Read, nil)})
	if got := d.used(&View{NIC: web}); len(got) != 1 || got[0].NIC != "web" || got[0].Tenant != "red" || got[0].Network != "net" {
		t.Errorf("at the listener of red/web: %+v", got)
	}
	if got := d.used(&View{}); len(got) != 0 {
		t.Errorf("at a listener without NIC: %+v", got)
	}
	if got := d.used(&View{Tenants: true, NIC: web}); len(got) != 0 {
		t.Errorf("at the tenants' socket somebody who administers none: %+v", got)
	}
	d.cfg.Clients = administrator("red")
	if got := d.used(&View{Tenants: true}); len(got) != 2 || got[0].NIC != "db" || got[1].NIC != "web" || got[0].Tenant != "red" {
		t.Errorf("at the tenants' socket an administrator of red: %+v", got)
	}
	if got := d.used(&View{All: true}); len(got) != 4 {
		t.Errorf("the owner: %+v", got)
	}
	if got := d.nics(&View{All: true}); len(got) != 3 {
		t.Errorf("the owner's NICs: %+v", got)
	}
}

// TestCensusOfIdle: counts of a NIC that no program has open are also read.
func TestCensusOfIdle(t *testing.T) {
	loop, tab := &atOnce{}, registry.NewTable()
	c := NewCensus(loop, tab)
	n := putNIC(t, tab, "red/web", "red/net")
	other := putNIC(t, tab, "red/db", "red/net")
	for i := range uint64(4) {
		for range 2 {
			var got meter.Usage
			for _, r := range c.Read() {
				if r.ID == n {
					got = r.Counted
				}
			}
			if drops := got[meter.Drops(nic.DropNoQP)]; drops != i {
				t.Errorf("%d packets dropped, want %d", drops, i)
			}
		}
		n.Device.Drop(nic.DropNoQP, 1)
		if i == 2 {
			tab.Remove(other) // later readings reuse its memory
		}
	}
}

// BenchmarkCensus1000 measures the loop's time for one scrape of a thousand NICs.
func BenchmarkCensus1000(b *testing.B) {
	loop, tab := &atOnce{}, registry.NewTable()
	for i := range 1000 {
		n := &registry.NIC{Name: fmt.Sprint("red/n", i), Network: "red/net", Device: nic.New(nic.Config{Name: "rxe0"})}
		if err := tab.Add(n); err != nil {
			b.Fatal(err)
		}
	}
	c := NewCensus(loop, tab)
	for b.Loop() {
		c.Read()
	}
	b.ReportMetric(float64(loop.took)/float64(b.N), "loop-ns/op")
}
