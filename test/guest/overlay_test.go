package guest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

// Both are members of this network: we through vrdma, the guest through a vxlan device of the kernel with rxe on it.
const (
	netIP4, netIP6           = "10.78.0.1", "fd00:78::1"
	guestNetIP4, guestNetIP6 = "10.78.0.2", "fd00:78::2"
	guestMAC                 = "02:00:5e:10:00:02"
	netVNI                   = 0x123456
)

// rping is between members.
var rping = workload.Managed{Name: "rping", Port: 7174, Server: "rping -s -a ADDR -p PORT -v -V -C 10", Client: "rping -c -a ADDR -p PORT -v -V -C 10", Must: "ping data"}

// memberNIC is a declared NIC, as a place for programs.
type memberNIC struct {
	*harness.Daemon
	name string
}

// Program implements harness.Machine.
func (n memberNIC) Program(t testing.TB, argv ...string) harness.Program {
	return n.LaunchWith(t, []string{"--nic", n.name}, argv...)
}

// overlay: the guest is a member of a virtual network. It resolves our MAC addresses, again and again while traffic
// runs.
func (l *lab) overlay(t *testing.T) {
	l.cable.Keep(t)
	d := l.daemon(t, "--store", filepath.Join(harness.Directory(t, nil), "store"), "--underlay", ourIP4)
	declareNetwork(t, d, "", "")
	l.joinNetwork(t, d)
	defer l.leaveNetwork(t)
	p4 := pair{
		lab:   l,
		ours:  workload.Host{Machine: memberNIC{d, "red/ours"}, IP: ourIP4},
		guest: workload.Host{Machine: l.guest, IP: guestIP4, GID: l.guest.gid(t, guestNetIP4)},
	}
	p6 := p4
	p6.ours.Machine = memberNIC{d, "red/ours6"}
	p6.guest.GID = l.guest.gid(t, guestNetIP6)
	for _, c := range []struct {
		name  string
		p     pair
		addr  string
		guest string
	}{{"ipv4", p4, netIP4, guestNetIP4}, {"ipv6", p6, netIP6, guestNetIP6}} {
		t.Run(c.name, func(t *testing.T) {
			for _, w := range []workload.Workload{
				workload.Pingpong("rc", 4096, 30, ""), workload.Pingpong("ud", 512, 30, ""),
				perf("write_bw", "-n 20 -s 65536"), perf("read_bw", "-n 20 -s 65536"), perf("send_bw", "-n 20 -s 65536"),
			} {
				c.p.both(t, w)
			}
			ours, guest := c.p.ours, c.p.guest
			ours.IP, guest.IP = c.addr, c.guest // of rdma_cm
			t.Run("rping/guest_client", func(t *testing.T) { c.p.persist(t, rping, ours, guest) })
			t.Run("rping/our_client", func(t *testing.T) { c.p.persist(t, rping, guest, ours) })
		})
	}
	t.Run("probes", func(t *testing.T) { l.probes(t, d, p4) })
	t.Run("static", func(t *testing.T) { l.told(t, d, p4) })
	c := d.Status(t).Counters
	if c["overlay_questions"] == 0 || c["overlay_spoofed"]+c["overlay_bad_head"]+c["overlay_not_member"]+c["overlay_stranger"]+c["overlay_not_here"] != 0 {
		t.Errorf("the overlay counted %v", c)
	}
}

// probes: traffic continues while the kernel probes its neighbour by unicast. Here it does so seconds after the last
// answer; Linux' default is half a minute.
func (l *lab) probes(t *testing.T, d *harness.Daemon, p pair) {
	questions := func() uint64 { return d.Status(t).Counters["overlay_questions"] }
	seconds, rounds := harness.Pick(12, 120), 5
	if !harness.All() {
		// The kernel keeps what it knows for the old interval, so it must forget it.
		l.guest.Run(t, limit, "sh", "-c", "for f in 4 6; do cd /proc/sys/net/ipv$f/neigh/"+netDevice+"; echo 2000 >base_reachable_time_ms; echo 1 >delay_first_probe_time; echo 1 >gc_stale_time; done; /usr/sbin/ip neigh flush dev "+netDevice)
	}
	before, least := questions(), uint64(harness.Pick(3, 2)) // the first request after the flush is no probe
	for i := range rounds {                                  // a guest without a processor asks late
		p.persist(t, perf("write_lat", fmt.Sprintf("-D %d -s 64", seconds)), p.ours, p.guest)
		n := questions() - before
		t.Logf("%d questions in %d seconds", n, seconds*(i+1))
		if n >= least {
			return
		}
	}
	t.Errorf("%d questions came while traffic ran, want %d: the kernel was content, which proves nothing", questions()-before, least)
}

// told: the guest joins again with static entries for all members. It resolves no MAC address.
func (l *lab) told(t *testing.T, d *harness.Daemon, p pair) {
	l.leaveNetwork(t)
	l.joinNetwork(t, d, "--static")
	ours, guest := p.ours, p.guest
	ours.IP, guest.IP = netIP4, guestNetIP4
	p.persist(t, rping, ours, guest)
	p.persist(t, rping, guest, ours)
	out := l.guest.Run(t, limit, "ip", "neigh", "show", "dev", netDevice)
	for _, a := range []string{netIP4, netIP6} {
		if !strings.Contains(out, a+" lladdr") || strings.Count(out, "PERMANENT") != 2 {
			t.Errorf("the guest's neighbours, want %s to be permanent:\n%s", a, out)
		}
	}
}

// netDevice is the guest's vxlan device, as the commands call it.
var netDevice = fmt.Sprintf("vx%d", netVNI)

// joinNetwork makes the guest a member with rxe on its vxlan device, only by the commands that vrdma prints.
func (l *lab) joinNetwork(t *testing.T, d *harness.Daemon, flags ...string) {
	t.Helper()
	l.obey(t, memberCommands(t, d, flags...))
}

// memberCommands are those that vrdma prints for a Linux member.
func memberCommands(t *testing.T, d *harness.Daemon, flags ...string) string {
	t.Helper()
	out, err := d.Command(append([]string{"network", "show", "red/train", "--linux"}, flags...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("network show: %v\n%s", err, out)
	}
	t.Logf("$ vrdma network show red/train --linux %s\n%s", strings.Join(flags, " "), out)
	return string(out)
}

// obey runs the commands in the guest.
func (l *lab) obey(t *testing.T, commands string) {
	t.Helper()
	l.guest.Run(t, limit, "rdma", "link", "delete", "rxe0")
	for line := range strings.Lines(commands) {
		if argv := strings.Fields(line); len(argv) > 0 && argv[0] != "#" {
			l.guest.Run(t, limit, argv...)
		}
	}
}

// leaveNetwork undoes that.
func (l *lab) leaveNetwork(t *testing.T) {
	t.Helper()
	l.guest.Run(t, limit, "sh", "-ec", fmt.Sprintf(`rdma link delete rxe_%[1]s
		/usr/sbin/ip link delete %[1]s
		rdma link add rxe0 type rxe netdev eth0`, netDevice))
}

// declareNetwork declares the network, its NICs and the guest's host, with more lines of spec for host and network.
func declareNetwork(t *testing.T, d *harness.Daemon, ofHost, ofNetwork string) {
	t.Helper()
	file := filepath.Join(harness.Directory(t, nil), "objects.yaml")
	text := fmt.Sprintf(`apiVersion: vrdma.io/v1
kind: Host
metadata: {name: guest}
spec: {type: linux, address: %s%s}
---
apiVersion: vrdma.io/v1
kind: Tenant
metadata: {name: red}
spec: {}
---
apiVersion: vrdma.io/v1
kind: Network
metadata: {name: train, tenant: red}
spec: {vni: %d, subnets: [10.78.0.0/24, "fd00:78::/64"]%s}
---
apiVersion: vrdma.io/v1
kind: NIC
metadata: {name: ours, tenant: red}
spec: {network: train, address: %s}
---
apiVersion: vrdma.io/v1
kind: NIC
metadata: {name: ours6, tenant: red}
spec: {network: train, address: "%s"}
---
apiVersion: vrdma.io/v1
kind: NIC
metadata: {name: guest, tenant: red}
spec: {network: train, addresses: [%s, "%s"], host: guest, mac: "%s"}
`, guestIP4, ofHost, netVNI, ofNetwork, netIP4, netIP6, guestNetIP4, guestNetIP6, guestMAC)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := d.Command("apply", "-f", file).CombinedOutput(); err != nil {
		t.Fatalf("apply: %v\n%s", err, out)
	}
}
