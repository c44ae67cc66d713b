package wire

import (
	"encoding/json"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

// Quotas, caps and usage of a tenant whose NICs are on two hosts. Each daemon counts and limits its own end. (Policies
// across hosts: test/networks TestTwoHosts.)

func underlay4(h *host) string { return h.ip4 }

// ask runs a command of ours and reads its JSON.
func (h *host) ask(t testing.TB, answer any, args ...string) {
	t.Helper()
	out, err := h.Command(append(args, "-o", "json")...).Output()
	if err == nil {
		err = json.Unmarshal(out, answer)
	}
	if err != nil {
		t.Fatalf("vrdma %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// count returns a counter of the NIC, and when it was read.
func (n tenantNIC) count(t testing.TB) (map[string]uint64, time.Time) {
	t.Helper()
	top, err := protocol.QueryTop(n.Socket)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range top.NICs {
		if s.Tenant+"/"+s.NIC == n.name {
			return s.Used, s.At
		}
	}
	t.Fatalf("vrdma top does not show %s: %+v", n.name, top)
	return nil, time.Time{}
}

// moves waits until a NIC's counter has grown by n.
func (n tenantNIC) moves(t testing.TB, column string, more uint64, c *harness.Conversation) {
	t.Helper()
	first, _ := n.count(t)
	if !harness.Poll(minute, func() bool {
		now, _ := n.count(t)
		return now[column] >= first[column]+more || c.Client.Ended(0)
	}) || c.Client.Ended(0) {
		t.Fatalf("%s: %s does not move\n%v", n.name, column, c)
	}
}

// object returns one of the lab's NICs with more in its spec.
func (n tenantNIC) object(more string) string {
	of, name, _ := strings.Cut(n.name, "/")
	return "apiVersion: vrdma.io/v1\nkind: NIC\nmetadata: {name: " + name + ", tenant: " + of + "}\nspec: {network: train, address: " + n.ip + more + "}\n"
}

func tenantObject(name, spec string) string {
	return "apiVersion: vrdma.io/v1\nkind: Tenant\nmetadata: {name: " + name + "}\nspec: {" + spec + "}\n"
}

// TestQuotaAcross: a quota applies to connections to another host, at the end where it is declared, and to no other
// tenant.
func TestQuotaAcross(t *testing.T) {
	w, nics := overlayLab(t, layout{mtu: 1500}, underlay4)
	a, b := nics["red"][0], nics["red"][1]
	w.a.declare(t, tenantObject("red", "quota: {queuePairs: 5, connections: 1}"))
	w.b.declare(t, tenantObject("red", "quota: {queuePairs: 7}"))

	server := b.LaunchWith(t, []string{"--nic", b.name}, "rping", "-s", "-P", "-a", b.ip)
	b.AwaitManaged(t, server, rpingPort)
	client := a.LaunchWith(t, []string{"--nic", a.name}, "rping", "-c", "-a", b.ip, "-v")
	client.Printed(t, "ping data", minute)
	second := a.LaunchWith(t, []string{"--nic", a.name}, "rping", "-c", "-a", b.ip, "-C", "1")
	second.Printed(t, "rdma_connect: Resource temporarily unavailable", minute) // after that rping waits for ever
	second.End()
	second.Ended(minute)

	// rping has one queue pair at either end.
	program := harness.Compile(t, "quota")
	for _, c := range []struct {
		nic  tenantNIC
		want string
	}{{a, "qps 4 EAGAIN\n"}, {b, "qps 6 EAGAIN\n"}, {nics["blue"][0], "qps 64 all\n"}, {nics["blue"][1], "qps 64 all\n"}} {
		out := c.nic.LaunchWith(t, []string{"--nic", c.nic.name}, program, "limits").OK(t, minute)
		if !strings.Contains(out, c.want) {
			t.Errorf("%s gets\n%swant\n%s", c.nic.name, out, c.want)
		}
	}
	if client.Ended(0) || server.Ended(0) {
		t.Error("the connection within the quota has ended")
	}
}

// TestCapAcross: the sender's cap limits what leaves the host, and the receiver's cap what arrives from another host.
func TestCapAcross(t *testing.T) {
	const bits = 80e6
	for _, c := range []struct {
		name  string
		side  int // that has the cap
		count string
	}{{"out", 0, "transmit_bytes"}, {"in", 1, "receive_bytes"}} {
		t.Run(c.name, func(t *testing.T) {
			_, nics := overlayLab(t, layout{mtu: 1500}, underlay4)
			a, b := nics["red"][0], nics["red"][1]
			capped := nics["red"][c.side]
			capped.declare(t, capped.object(", rate: {"+c.name+": 80Mbit}"))
			talk := workload.Perf("write_bw", "-D 180 -f 0 -s 65536 -t 16").Start(t, b.side(), a.side())
			capped.moves(t, c.count, 1<<20, talk) // the burst has passed
			before, begin := capped.count(t)
			capped.moves(t, c.count, 10<<20, talk)
			after, end := capped.count(t)
			got := float64(after[c.count]-before[c.count]) * 8 / end.Sub(begin).Seconds()
			t.Logf("%.1f Mbit/s", got/1e6)
			if got > 1.5*bits {
				t.Errorf("%s at %.1f Mbit/s, the cap is %.0f", c.count, got/1e6, bits/1e6)
			}
			talk.Client.End()
			talk.Server.End()
		})
	}
}

// TestUsageAcross: each host bills its own end of the traffic.
func TestUsageAcross(t *testing.T) {
	_, nics := overlayLab(t, layout{mtu: 1500}, underlay4)
	a, b := nics["red"][0], nics["red"][1]
	const iterations, size = 500, 65536
	workload.Perf("write_bw", "-s "+strconv.Itoa(size)+" -n "+strconv.Itoa(iterations)).Run(t, b.side(), a.side(), minute)
	const sent = iterations * size
	billed := func(n tenantNIC) map[string]uint64 {
		var u protocol.UsageReport
		n.ask(t, &u, "usage")
		sum := map[string]uint64{}
		for _, r := range u.Records {
			if r.Tenant+"/"+r.NIC == n.name {
				for name, v := range r.Used {
					sum[name] += v
				}
			} else if r.Used["transmit_bytes"]+r.Used["receive_bytes"] != 0 {
				t.Errorf("%s/%s is billed for what %s sent: %v", r.Tenant, r.NIC, n.name, r.Used)
			}
		}
		return sum
	}
	from, to := billed(a), billed(b)
	t.Logf("a: %v\nb: %v", from, to)
	// Retransmissions are sent, and so they are counted.
	again := from["retransmitted_packets"] * 1024
	if from["transmit_bytes"] < sent || from["transmit_bytes"] > sent+again || from["receive_bytes"] != 0 {
		t.Errorf("the sender is billed for %d bytes out, %d of them for the second time, and %d in; the program sent %d", from["transmit_bytes"], again, from["receive_bytes"], sent)
	}
	if to["receive_bytes"] < sent || to["receive_bytes"] > from["transmit_bytes"] || to["transmit_bytes"] != 0 {
		t.Errorf("the receiver is billed for %d bytes in and %d out, the program sent %d", to["receive_bytes"], to["transmit_bytes"], sent)
	}
}

// TestPartition: the wire between the hosts is cut under traffic, and restored. A connection with retries left goes on;
// one without ends as with a dead host. NICs of the same host are not disturbed.
func TestPartition(t *testing.T) {
	w, nics := overlayLab(t, layout{mtu: 1500}, underlay4)
	a, b := nics["red"][0], nics["red"][1]
	near, nearer := tenantNIC{w.a, "blue/near", "10.1.0.8"}, tenantNIC{w.a, "blue/nearer", "10.1.0.9"}
	w.a.declare(t, near.object("")+"---\n"+nearer.object(""))
	const endless = "-D 120 -f 0 -s 4096 -t 16 -u "
	patient := workload.Perf("write_bw", endless+"21").Start(t, b.side(), a.side())
	hasty := workload.Perf("write_bw", endless+"14").Start(t, nics["blue"][1].side(), nics["blue"][0].side())
	local := workload.Perf("write_bw", endless+"10").Start(t, near.side(), nearer.side())
	const some = 1 << 20
	a.moves(t, "transmit_bytes", some, patient)
	nics["blue"][0].moves(t, "transmit_bytes", some, hasty)

	w.a.space.IP(t, "link", "set", "eth0", "down")
	if !hasty.Client.Ended(minute) {
		t.Fatalf("a connection goes on without a wire\n%v", hasty)
	}
	const retryExceeded = "Failed status 12"
	if !strings.Contains(hasty.Client.Output(), retryExceeded) {
		t.Errorf("the client does not say %q\n%v", retryExceeded, hasty)
	}
	near.moves(t, "receive_bytes", some, local)
	w.a.space.IP(t, "link", "set", "eth0", "up")
	a.moves(t, "transmit_bytes", some, patient)
	b.moves(t, "receive_bytes", some, patient)
	near.moves(t, "receive_bytes", some, local)
	for _, c := range []*harness.Conversation{patient, hasty, local} {
		c.Client.End()
		c.Server.End()
	}
	// New connections work.
	rping(t, nics["blue"][0], nics["blue"][1])
}

// TestSharesAcross: two tenants send to another host at full rate. They compete for the sender's loop. The tenant with
// eight times the weight gets eight times the loop. Programs without a processor do not compete, so one window in which
// both compete is enough.
func TestSharesAcross(t *testing.T) {
	w, nics := overlayLab(t, layout{mtu: 1500}, underlay4)
	w.a.declare(t, tenantObject("red", "weight: 8"))
	talks := make(map[string]*harness.Conversation)
	for _, of := range []string{"red", "blue"} {
		talks[of] = workload.Perf("write_bw", "-c UC -D 120 -f 0 -s 65536 -t 128 -q 4").Start(t, nics[of][1].side(), nics[of][0].side())
	}
	for of, c := range talks {
		nics[of][0].moves(t, "transmit_bytes", 8<<20, c)
	}
	look := func(of string) (loop, bytes uint64) {
		used, _ := nics[of][0].count(t)
		return used["loop_ns"], used["transmit_bytes"]
	}
	const window = 32 << 20
	ended := func() bool { return talks["red"].Client.Ended(0) || talks["blue"].Client.Ended(0) }
	if !harness.Poll(minute, func() bool {
		red, redBytes := look("red")
		blue, blueBytes := look("blue")
		harness.Poll(minute, func() bool {
			_, r := look("red")
			_, b := look("blue")
			return r+b > redBytes+blueBytes+window || ended()
		})
		redNow, _ := look("red")
		blueNow, _ := look("blue")
		more, less := redNow-red, blueNow-blue
		ratio := float64(more) / float64(max(less, 1))
		t.Logf("the tenants had %.1f and %.1f ms of the loop: %.2f : 1", float64(more)/1e6, float64(less)/1e6, ratio)
		return ratio > 4 && ratio < 16 || ended()
	}) || ended() {
		t.Errorf("a tenant with eight times the weight has another share of the loop\n%v\n%v", talks["red"], talks["blue"])
	}
	for _, c := range talks {
		c.Client.End()
		c.Server.End()
	}
}

// TestStoppedDaemon: a daemon gets no processor for a while. Its peers cannot tell that from a dead host: a connection
// without retries ends, one with retries left goes on afterwards, and new connections work. The wire loses nothing, and
// no data of the surviving connections is lost.
func TestStoppedDaemon(t *testing.T) {
	w, nics := overlayLab(t, layout{mtu: 1500}, underlay4)
	a, b := nics["red"][0], nics["red"][1]
	const endless, some = "-D 120 -f 0 -s 4096 -t 16 -u ", 1 << 20
	patient := workload.Perf("write_bw", endless+"21").Start(t, b.side(), a.side())
	hasty := workload.Perf("write_bw", endless+"14").Start(t, nics["blue"][1].side(), nics["blue"][0].side())
	a.moves(t, "transmit_bytes", some, patient)
	nics["blue"][0].moves(t, "transmit_bytes", some, hasty)

	syscall.Kill(w.b.PID(), syscall.SIGSTOP)
	defer syscall.Kill(w.b.PID(), syscall.SIGCONT)
	if !hasty.Client.Ended(minute) || !strings.Contains(hasty.Client.Output(), "Failed status 12") {
		t.Errorf("a daemon that does nothing is not given up\n%v", hasty)
	}
	syscall.Kill(w.b.PID(), syscall.SIGCONT)
	a.moves(t, "transmit_bytes", some, patient)
	b.moves(t, "receive_bytes", some, patient)
	for _, c := range []*harness.Conversation{patient, hasty} {
		c.Client.End()
		c.Server.End()
	}
	rping(t, nics["blue"][0], nics["blue"][1])
}
