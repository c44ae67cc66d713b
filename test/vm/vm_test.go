package vm

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/guest"
	"vrdma.dev/vrdma/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// limit is the limit for anything that involves a guest, which is emulated and shares the processors.
const limit = 3 * time.Minute

// world declares three NICs of one network, two of them for machines.
const world = `
apiVersion: vrdma.io/v1
kind: Tenant
metadata: {name: red}
---
apiVersion: vrdma.io/v1
kind: Network
metadata: {name: net, tenant: red}
spec: {subnets: [10.1.0.0/24]}
---
apiVersion: vrdma.io/v1
kind: NIC
metadata: {name: a, tenant: red}
spec: {network: net, address: 10.1.0.1}
---
apiVersion: vrdma.io/v1
kind: NIC
metadata: {name: b, tenant: red}
spec: {network: net, address: 10.1.0.2}
---
apiVersion: vrdma.io/v1
kind: NIC
metadata: {name: host, tenant: red}
spec: {network: net, address: 10.1.0.3}
`

// A machine is a guest with a NIC.
type machine struct {
	*guest.Guest
	nic, ip string
	socket  string // the agent's
	agent   *guest.Process
	test    *testing.T // the test that it lives as long as
}

// home is the directory of our programs in the machine.
const home = guest.Home

// boot starts a machine with a NIC of the daemon's, and the agent in it.
func boot(t *testing.T, d *harness.Daemon, image, nic, ip string) *machine {
	t.Helper()
	return bootWith(t, d, image, nic, ip, 320)
}

// bootWith is boot with this much memory, in MiB, and further arguments of QEMU.
func bootWith(t *testing.T, d *harness.Daemon, image, nic, ip string, memory int, args ...string) *machine {
	t.Helper()
	m := bare(t, d, image, nic, ip, memory, args...)
	m.startAgent(t)
	return m
}

// bare is bootWith without an agent.
func bare(t *testing.T, d *harness.Daemon, image, nic, ip string, memory int, args ...string) *machine {
	t.Helper()
	out, err := d.Command("guest", "args", nic, "--tcg", "-m", fmt.Sprintf("%dM", memory)).CombinedOutput()
	if err != nil {
		t.Fatalf("vrdma guest args: %v\n%s", err, out)
	}
	disk, err := d.Command("guest", "disk", filepath.Join(filepath.Dir(image), "disk")).CombinedOutput()
	if err != nil {
		t.Fatalf("vrdma guest disk: %v\n%s", err, disk)
	}
	m := &machine{test: t, nic: nic, ip: ip, socket: "/run/vrdma/vrdma.sock"}
	m.Guest = guest.Boot(t, guest.Config{
		IP4: "10.0.2.15/24", IP6: "fd00:2::15/64", MTU: 1500, Network: "user", Memory: memory, Initramfs: image, Reboots: true,
		More: slices.Concat(strings.Fields(string(out)), strings.Fields(string(disk)), args),
	})
	return m
}

// startAgent starts the agent, and waits until the daemon has answered it.
func (m *machine) startAgent(t *testing.T) {
	t.Helper()
	m.agent = m.Launch(m.test, home+"/vrdma", "guest", "agent", "--socket", m.socket, "--name", strings.ReplaceAll(m.nic, "/", "-"))
	if !harness.Poll(limit, func() bool { return strings.Contains(m.agent.Output(), "the daemon answers") || m.agent.Ended(0) }) || m.agent.Ended(0) {
		t.Fatalf("%s: no daemon answers the agent\n%s", m.nic, m.agent.Output())
	}
}

// verbs starts a program with the device.
func (m *machine) verbs(t *testing.T, argv ...string) *guest.Process {
	t.Helper()
	if m.agent.Ended(0) {
		t.Fatalf("the agent of %s has ended: %s\n%s", m.nic, m.agent.Fate(), m.agent.Output())
	}
	return m.Launch(t, append([]string{"env", "VRDMA_SOCKET=" + m.socket, home + "/vrdma", "run", "-q", "--"}, argv...)...)
}

// pair runs a server and its client in the machine.
func (m *machine) pair(t *testing.T, argv ...string) string {
	t.Helper()
	server := m.verbs(t, argv...)
	m.Await(t, server, 18515)
	client := m.verbs(t, append(argv, "127.0.0.1")...)
	done(t, client)
	done(t, server)
	return client.Output()
}

// done waits until a program ends with status 0.
func done(t *testing.T, p harness.Program) {
	t.Helper()
	if !p.Ended(limit) || strings.Contains(p.Fate(), "status") && !strings.Contains(p.Fate(), "status 0") {
		t.Fatalf("%s: %s after %v at most\n%s", p.Title(), p.Fate(), limit, p.Output())
	}
}

// TestMachines boots two machines, which serve all tests.
func TestMachines(t *testing.T) {
	d, a, b := lab(t)
	t.Run("disk", func(t *testing.T) { disk(t, a) })
	t.Run("not migrated", func(t *testing.T) { // the daemon writes to registered memory without a log
		if _, err := a.Monitor(t).Ask("migrate", map[string]any{"uri": "unix:/nowhere"}); err == nil || !strings.Contains(err.Error(), "VHOST_F_LOG_ALL") {
			t.Errorf("QEMU says %v", err)
		}
	})
	t.Run("verbs", func(t *testing.T) { verbs(t, d, a, b) })
	if harness.All() { // many programs, and slow ones
		t.Run("more", func(t *testing.T) { more(t, a) })
		t.Run("hostile", func(t *testing.T) { hostile(t, d, a, b) })
	}
	if harness.All() { // another machine boots, and many steps wait for the end of a process
		t.Run("sockets", func(t *testing.T) { sockets(t, d, a, b) })
		t.Run("ends", func(t *testing.T) { ends(t, d, a) })
	}
	t.Run("upgraded", func(t *testing.T) { upgraded(t, d, b) }) // last: other parts look at the first daemon
}

// verbs runs programs in machines: within one, with the host, and with another machine.
func verbs(t *testing.T, d *harness.Daemon, a, b *machine) {
	t.Run("within", func(t *testing.T) {
		if out := a.verbs(t, "ibv_devinfo"); !out.Ended(limit) || !strings.Contains(out.Output(), "PORT_ACTIVE") {
			t.Fatalf("ibv_devinfo: %s\n%s", out.Fate(), out.Output())
		}
		a.pair(t, "ibv_rc_pingpong", "-g", "0", "-n", "30")
		a.pair(t, "ibv_rc_pingpong", "-g", "0", "-n", "10", "-e")
		a.pair(t, "ib_write_bw", "-x", "0", "-F", "-n", "50")
		a.pair(t, "ib_atomic_bw", "-x", "0", "-F", "-n", "20")
	})
	t.Run("faults", func(t *testing.T) { faults(t, d, a) })
	t.Run("ordinary user", func(t *testing.T) { ordinary(t, a) })
	t.Run("machine_to_machine", func(t *testing.T) {
		rping(t, a, func(argv ...string) harness.Program { return b.verbs(t, argv...) }, b.ip)
	})
	t.Run("machine_to_host", func(t *testing.T) {
		rping(t, a, func(argv ...string) harness.Program {
			return d.LaunchWith(t, []string{"--nic", "red/host"}, argv...)
		}, "10.1.0.3")
	})
	t.Run("status", func(t *testing.T) {
		p := b.verbs(t, "rping", "-s", "-a", b.ip, "-P")
		if !harness.Poll(limit, func() bool { return strings.Contains(programs(t, d), "rping@red-b") || p.Ended(0) }) {
			t.Errorf("status shows %q, want rping of machine red-b", programs(t, d))
		}
		// The program that has the NIC open uses its RoCE. The other NIC's RoCE belongs to its machine, for rxe.
		whose := func() (all []string) {
			for _, n := range d.Status(t).NICs {
				all = append(all, n.NIC+" "+n.RoCE)
			}
			return all
		}
		if !harness.Poll(limit, func() bool { return slices.Contains(whose(), "a card") && slices.Contains(whose(), "b daemon") }) {
			t.Errorf("RoCE: %q, want that of a to be its card's, and that of b the daemon's", whose())
		}
	})
}

// faults: a Fault of a NIC hits its machine's packets, and a program in the machine may have faults of its own.
func faults(t *testing.T, d *harness.Daemon, a *machine) {
	fault := func(args ...string) string {
		out, err := d.Command(append([]string{"fault"}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("vrdma fault %q: %v\n%s", args, err, out)
		}
		return string(out)
	}
	fault("add", "--name", "lossy", "--nic", "red/a", "drop,packet=5")
	a.pair(t, "ib_write_bw", "-x", "0", "-F", "-n", "50")
	if out := fault("list"); !regexp.MustCompile(`red/lossy +\S+ +[1-9][0-9]* +drop`).MatchString(out) {
		t.Errorf("no hits:\n%s", out)
	}
	fault("remove", "red/lossy")
	p := a.Launch(t, "env", "VRDMA_SOCKET="+a.socket, home+"/vrdma", "run", "-q", "--fault", "reg-mr,message=1", "--", "ibv_rc_pingpong", "-g", "0")
	if !p.Ended(limit) || p.Code() == 0 || !strings.Contains(p.Output(), "register MR") {
		t.Errorf("ibv_rc_pingpong whose first region fails: %s\n%s", p.Fate(), p.Output())
	}
}

// ordinary: a user who may lock 8 MiB registers 12 MiB. The agent's memory does not count against the limit.
func ordinary(t *testing.T, m *machine) {
	m.Run(t, limit, "sh", "-c", "grep -q ^user: /etc/passwd || echo user:x:1000:1000::/tmp:/bin/sh >>/etc/passwd")
	command := func(args string) []string {
		return []string{"su", "user", "-c", "[ $(id -u) = 1000 ] && [ $(ulimit -l) = 8192 ] && exec env VRDMA_SOCKET=" + m.socket + " " + home + "/vrdma run -q -- ib_write_bw -x 0 -F -n 5 -s 6291456 " + args}
	}
	server := m.Launch(t, command("")...)
	m.Await(t, server, 18515)
	client := m.Launch(t, command("127.0.0.1")...)
	done(t, client)
	done(t, server)
	if !strings.Contains(client.Output(), " 6291456 ") {
		t.Errorf("no result:\n%s", client.Output())
	}
}

// disk: a machine installs what it needs from the disk, without a network.
func disk(t *testing.T, m *machine) {
	out := m.Run(t, limit, "sh", "-c", "modprobe virtio_blk && tar -xOf /dev/vda install | PREFIX=/usr/local sh && env VRDMA_SOCKET="+m.socket+" /usr/local/bin/vrdma run -q -- ibv_devinfo")
	if !strings.Contains(out, "vrdma: installed") || !strings.Contains(out, "PORT_ACTIVE") {
		t.Error(out)
	}
}

// rping runs a client in a machine and a server elsewhere: ten messages of 2000 bytes, checked.
func rping(t *testing.T, client *machine, start func(argv ...string) harness.Program, ip string) {
	t.Helper()
	server := start("rping", "-s", "-a", ip, "-C", "10", "-S", "2000", "-V")
	for try := 0; ; try++ {
		c := client.verbs(t, "rping", "-c", "-a", ip, "-C", "10", "-S", "2000", "-V")
		if c.Ended(limit) && c.Code() == 0 {
			break
		}
		// Refused until the server listens.
		if !c.Ended(0) || server.Ended(0) || try == 50 {
			t.Fatalf("client: %s\n%s\nserver: %s\n%s", c.Fate(), c.Output(), server.Fate(), server.Output())
		}
	}
	done(t, server)
}

// programs returns the programs that have the device open.
func programs(t *testing.T, d *harness.Daemon) string {
	t.Helper()
	var names []string
	for _, s := range d.Status(t).Sessions {
		names = append(names, s.Program)
	}
	return strings.Join(names, " ")
}

// lab is a daemon and two machines.
func lab(t *testing.T) (d *harness.Daemon, a, b *machine) {
	t.Helper()
	d = start(t, world)
	var more []func(root string)
	if harness.All() {
		more = append(more, func(root string) { addSocketPrograms(t, root) })
	}
	image := guest.Ours(t, more...)
	booted := make(chan *machine, 1)
	go func() {
		defer close(booted) // a failure ends this goroutine only
		booted <- boot(t, d, image, "red/b", "10.1.0.2")
	}()
	defer func() { <-booted }() // it uses t
	a = boot(t, d, image, "red/a", "10.1.0.1")
	if b = <-booted; b == nil {
		t.FailNow()
	}
	return d, a, b
}

// start starts a daemon with these objects, whose NICs red/a and red/b are for machines.
func start(t *testing.T, objects string) *harness.Daemon {
	t.Helper()
	harness.Need(t, "cpio", "rping", "ibv_rc_pingpong", "ib_write_bw")
	d := harness.StartUpgradable(t, harness.Options{Args: []string{"--guest", "red/a,red/b", "--store", filepath.Join(harness.Directory(t, nil), "store")}})
	file := filepath.Join(t.TempDir(), "world.yaml")
	if err := os.WriteFile(file, []byte(objects), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := d.Command("apply", "-f", file).CombinedOutput(); err != nil {
		t.Fatalf("vrdma apply: %v\n%s", err, out)
	}
	return d
}
