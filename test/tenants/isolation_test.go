package tenants

import (
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/test/harness"
)

// messages is the number of messages that a pair of red sends at a time.
const messages = 1600

// innocents are programs of tenant red, which blue's actions must not affect: pairs, one after the other, that check
// every byte.
type innocents struct {
	d      *daemon
	pairs  uint64
	before map[string]nic.Counters
	denied *[]string
}

var ofRed = regexp.MustCompile(`\bred\b`)

var redNICs = []string{"red/web", "red/db", "red/slow"}

// innocent starts the programs of red.
func (d *daemon) innocent(t testing.TB) *innocents {
	t.Helper()
	return &innocents{d: d, before: d.counters(redNICs), denied: d.denials(t, redNICs...)}
}

func (d *daemon) counters(names []string) map[string]nic.Counters {
	all := map[string]nic.Counters{}
	d.engine.Do(func() {
		for _, name := range names {
			all[name] = d.provisioner.NIC(key(name)).Counters()
		}
	})
	return all
}

// stream starts a pair between two NICs that sends n messages; 0: until it is killed.
func (d *daemon) stream(t testing.TB, server, client string, n int) *harness.Conversation {
	t.Helper()
	bin, tcp := harness.Compile(t, "stream"), harness.FreePort(t)
	number := strconv.Itoa(tcp)
	return harness.Converse(t, tcp, d.at(server), []string{bin, "server", number, "careful"}, d.at(client), []string{bin, "client", number, strconv.Itoa(n), "careful"})
}

// work runs pairs, at least one, until the attack beside them has ended.
func (i *innocents) work(t testing.TB, over func() bool) {
	t.Helper()
	for begun := time.Now(); ; {
		c := i.d.stream(t, "red/web", "red/db", messages)
		c.OK(t, minute)
		if out := c.Client.Output(); !strings.Contains(out, fmt.Sprintf("done %d\n", messages)) {
			t.Fatalf("red's client, want that all messages arrive:\n%s", out)
		}
		i.pairs++
		if over() {
			return
		}
		if time.Since(begun) > 3*minute {
			t.Fatal("what red runs beside does not end")
		}
	}
}

// unmoved: red's NICs have counted what red's programs sent and nothing else, and red has no events.
func (i *innocents) unmoved(t testing.TB) {
	t.Helper()
	sum := func(m [transport.NumOps]uint64) (n uint64) {
		for _, c := range m {
			n += c
		}
		return n
	}
	after := i.d.counters(redNICs)
	all, answers := i.pairs*messages, i.pairs*messages/64
	for _, want := range []struct {
		name       string
		sent, rcvd uint64
		connected  uint64
	}{{"red/web", answers, all, i.pairs}, {"red/db", all, answers, i.pairs}, {"red/slow", 0, 0, 0}} {
		a, b := after[want.name], i.before[want.name]
		sent, rcvd := sum(a.SentMessages)-sum(b.SentMessages), sum(a.RcvdMessages)-sum(b.RcvdMessages)
		if sent != want.sent || rcvd != want.rcvd || a.Connected-b.Connected != want.connected {
			t.Errorf("%s has sent %d messages, received %d, with %d queue pairs, want %d, %d, %d",
				want.name, sent, rcvd, a.Connected-b.Connected, want.sent, want.rcvd, want.connected)
		}
		if a.Drops != b.Drops || a.Refusals != b.Refusals {
			t.Errorf("%s has dropped or refused: %v, %v, before %v, %v", want.name, a.Drops, a.Refusals, b.Drops, b.Refusals)
		}
		for what, n := range map[string]uint64{
			"access errors": a.AccessErrors - b.AccessErrors, "failed sends": a.SendErrors - b.SendErrors, "wrong peers": a.WrongPeer - b.WrongPeer,
			"wrong keys": a.BadPKey + a.BadQKey - b.BadPKey - b.BadQKey, "exhausted retries": a.RetryExceeded - b.RetryExceeded,
		} {
			if n != 0 {
				t.Errorf("%s has %d %s", want.name, n, what)
			}
		}
	}
	// No foreign packet came into red's network, and none left it. (Inside one daemon, packets that only acknowledge
	// are merged.)
	web, db := after["red/web"], after["red/db"]
	if web.SentBytes != db.RcvdBytes || db.SentBytes != web.RcvdBytes || web.Retransmitted+db.Retransmitted != 0 {
		t.Errorf("red/web has sent %d bytes and red/db received %d; the other way %d and %d; sent again %d and %d packets",
			web.SentBytes, db.RcvdBytes, db.SentBytes, web.RcvdBytes, web.Retransmitted, db.Retransmitted)
	}
	for what, list := range map[string]*[]string{"refused": &i.d.refused, "quota": &i.d.quotas, "denied": i.denied} {
		if text := i.d.noted(list); ofRed.MatchString(text) {
			t.Errorf("events of red, %s:\n%s", what, text)
		}
	}
	t.Logf("red: %d pairs, %d messages", i.pairs, all)
}

// opened is the example with NICs that every user may open.
func opened(t testing.TB) *daemon {
	t.Helper()
	return startAt(t, harness.Directory(t, nil), example(t), 0o666, 0o755)
}

// gone waits until nobody uses a NIC any more.
func (d *daemon) gone(t testing.TB, name string) {
	t.Helper()
	if !harness.Poll(minute, func() bool { return len(d.provisioner.Users(key(name))) == 0 }) {
		t.Errorf("%s is still used: %v", name, d.provisioner.Users(key(name)))
	}
}

// Another user runs every attack of the hostile program on a NIC of blue: only that tenant's own device suffers. Red
// has the same addresses and works on.
func TestHostileTenant(t *testing.T) {
	bin := harness.Compile(t, "hostile")
	list, err := exec.Command(bin, "list").Output()
	if err != nil {
		t.Fatal(err)
	}
	d := opened(t)
	red := d.innocent(t)
	for _, attack := range strings.Fields(string(list)) {
		t.Run(attack, func(t *testing.T) {
			cmd := nobody(d.at("blue/web").command(bin, attack))
			cmd.Env = append(cmd.Env, "HOSTILE_SECONDS="+harness.Pick("0.3", "3"))
			p := harness.Spawn(t, cmd)
			// The program's limits depend on the machine, its duration on the load, and it may destroy what it waits for
			// itself (its mailbox). It gets enough time to do harm, and no more.
			enough := time.Now().Add(harness.Pick(10*time.Second, minute/2))
			red.work(t, func() bool {
				if time.Now().After(enough) {
					p.Signal(syscall.SIGKILL)
				}
				return p.Ended(0)
			})
			if !strings.Contains(p.Output(), "begun") {
				t.Errorf("the attack did not begin:\n%s", p.Output())
			}
			d.gone(t, "blue/web")
			red.unmoved(t)
		})
	}
}

// blue's programs are killed at all moments of a transfer.
func TestCrashesOfAnotherTenant(t *testing.T) {
	d := opened(t)
	red := d.innocent(t)
	for _, victim := range []string{"client", "server", "both"} {
		c := d.stream(t, "blue/web", "blue/db", 0)
		c.Client.(*harness.Process).Printed(t, "running", minute)
		if victim != "server" {
			c.Client.(*harness.Process).Signal(syscall.SIGKILL)
		}
		if victim != "client" {
			c.Server.(*harness.Process).Signal(syscall.SIGSEGV)
		}
		red.work(t, func() bool { return c.Client.Ended(0) || c.Server.Ended(0) })
		c.Client.End() // the survivor sends without answers for seconds
		c.Server.End()
	}
	d.gone(t, "blue/web")
	d.gone(t, "blue/db")
	red.unmoved(t)
}

// blue sends as fast as it can, with many queue pairs.
func TestFloodOfAnotherTenant(t *testing.T) {
	harness.Need(t, "ib_write_bw")
	d := opened(t)
	red := d.innocent(t)
	tcp := harness.FreePort(t)
	argv := []string{"ib_write_bw", "-x", "0", "-q", "16", "-t", "64", "-s", "65536", "-D", "600", "-F", "-p", strconv.Itoa(tcp)}
	c := harness.Converse(t, tcp, d.at("blue/web"), argv, d.at("blue/db"), append(argv[:len(argv):len(argv)], "127.0.0.1"))
	sent := func() uint64 { return d.counters([]string{"blue/db"})["blue/db"].SentBytes }
	if !harness.Poll(minute, func() bool { return sent() > 1<<20 || c.Client.Ended(0) }) || c.Client.Ended(0) {
		t.Fatalf("blue sends nothing\n%v", c)
	}
	at, pairs := sent(), 0
	red.work(t, func() bool { pairs++; return pairs >= harness.Pick(3, 30) && sent() > at })
	if c.Client.Ended(0) {
		t.Errorf("blue's flood has ended: %s\n%s", c.Client.Fate(), c.Client.Output())
	}
	c.Client.End()
	c.Server.End()
	red.unmoved(t)
}

// blue uses its whole quota and is refused more.
func TestQuotaOfAnotherTenant(t *testing.T) {
	d := opened(t)
	d.apply(t, "apiVersion: vrdma.io/v1\nkind: Tenant\nmetadata: {name: blue}\nspec: {quota: {devices: 4, queuePairs: 5, completionQueues: 6, memory: 8Mi}}\n")
	red := d.innocent(t)
	program := harness.Compile(t, "quota")
	for range harness.Pick(2, 20) {
		p := d.at("blue/web").launch(t, program, "limits")
		red.work(t, func() bool { return p.Ended(0) })
		p.OK(t, 0)
	}
	if !strings.Contains(d.noted(&d.quotas), "blue: tenant blue may have") {
		t.Errorf("blue's quota was not met: %s", d.noted(&d.quotas))
	}
	red.unmoved(t)
}

// blue's programs are stopped with queues full of work, and continued later.
func TestStoppedTenant(t *testing.T) {
	d := opened(t)
	red := d.innocent(t)
	for _, victim := range []string{"client", "server"} {
		c := d.stream(t, "blue/web", "blue/db", 0)
		client, server := c.Client.(*harness.Process), c.Server.(*harness.Process)
		client.Printed(t, "running", minute)
		stopped := map[string]*harness.Process{"client": client, "server": server}[victim]
		stopped.Signal(syscall.SIGSTOP)
		red.work(t, func() bool { return true })
		stopped.Signal(syscall.SIGCONT)
		red.work(t, func() bool { return true })
		c.Client.End()
		c.Server.End()
	}
	d.gone(t, "blue/web")
	red.unmoved(t)
}
