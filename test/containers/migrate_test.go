package containers

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/cable"
	"vrdma.dev/vrdma/test/etcdtest"
	"vrdma.dev/vrdma/test/harness"
)

// movers are two hosts with podman and CRIU that share a store, and a wire between them.
type movers struct {
	a, b   *host
	groups string // the parent of the containers' control groups
}

// newMovers makes the hosts. Both have the image rdma.
func newMovers(t *testing.T) *movers {
	t.Helper()
	m := &movers{groups: controlGroup(t)}
	store := etcdtest.Start(t, 1)
	var hosts []*host
	var spaces []*cable.Namespace
	for range 2 {
		h := newHostOf(t, harness.CRIU(t), "", "bookworm")
		hosts = append(hosts, h)
		spaces = append(spaces, cable.NamespaceAt(t, fmt.Sprintf("/proc/%d/ns/net", h.pid)))
	}
	m.a, m.b = hosts[0], hosts[1]
	cable.Veth(t, spaces[0], spaces[1], "eth0", 1500)
	for i, h := range hosts {
		ip := fmt.Sprintf("10.99.0.%d", i+1)
		spaces[i].Address(t, "eth0", ip+"/24")
		for _, to := range store.Endpoints() {
			reach(t, spaces[i], to)
		}
		h.installCRIU(t)
		for file, from := range map[string]string{"ca": store.CA, "certificate": store.Certificate, "key": store.Key} {
			h.bring(t, from, "/run/etcd/"+file)
		}
		h.write(t, "/run/etcd/store.yaml", "ca: /run/etcd/ca\ncertificate: /run/etcd/certificate\nkey: /run/etcd/key\n")
		h.serve(t, "--store", store.URL(), "--store-config", "/run/etcd/store.yaml", "--host-name", string(rune('a'+i)), "--underlay", ip)
	}
	m.a.run(t, "sh", "-c", "tar -c -C /images/bookworm --exclude=./proc --exclude=./sys . | podman import --change ENV=PATH=/usr/bin:/bin - rdma && podman save -o /tmp/rdma.tar rdma")
	m.bring(t, m.a, m.b, "/tmp/rdma.tar")
	m.b.run(t, "podman", "load", "-i", "/tmp/rdma.tar")
	return m
}

// installCRIU makes CRIU and its plugin find what they need.
func (h *host) installCRIU(t *testing.T) {
	t.Helper()
	h.run(t, "mkdir", "-p", "/etc/criu", "/run/etcd", "/usr/lib/criu")
	h.run(t, "sed", "-i", "/^cgroups/d", "/etc/containers/containers.conf") // CRIU freezes a control group
	h.write(t, "/etc/criu/crun.conf", "network-lock nftables\n")
	h.run(t, "ln", "-s", "/opt/vrdma/vrdma_criu_plugin.so", "/usr/lib/criu/vrdma_plugin.so")
	// CRIU has no environment, and this daemon not the default socket.
	h.write(t, "/usr/bin/vrdma", "#!/bin/sh\nVRDMA_SOCKET="+socket+" exec /opt/vrdma/vrdma \"$@\"\n")
	h.run(t, "chmod", "755", "/usr/bin/vrdma")
}

// reach makes an address of the machine reachable in a namespace.
func reach(t *testing.T, n *cable.Namespace, to string) {
	t.Helper()
	var l net.Listener
	var err error
	n.Do(t, func() { l, err = net.Listen("tcp", to) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go carry(c, to)
		}
	}()
}

// carry forwards a connection.
func carry(c net.Conn, to string) {
	defer c.Close()
	s, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	go func() {
		io.Copy(s, c)
		s.Close()
	}()
	io.Copy(c, s)
	s.Close()
}

// bring copies a file from one host to another.
func (m *movers) bring(t *testing.T, from, to *host, file string) {
	t.Helper()
	to.bring(t, fmt.Sprintf("/proc/%d/root%s", from.pid, file), file)
}

// begin starts a container that stays.
func (m *movers) begin(t *testing.T, h *host, name, nic string, program ...string) {
	t.Helper()
	h.run(t, append([]string{"podman", "run", "-d", "--name", name, "--network", "none", "--cgroup-parent", m.groups, "--device", "vrdma.io/nic=" + nic, "rdma"}, program...)...)
}

// move moves a container with podman's own commands.
func (m *movers) move(t *testing.T, from, to *host, name string) {
	t.Helper()
	began := time.Now()
	image := "/tmp/" + name + ".tar"
	from.criu(t, "dump.log", "podman", "container", "checkpoint", "-e", image, name)
	from.run(t, "podman", "rm", "-f", "-t", "0", name)
	m.bring(t, from, to, image)
	to.criu(t, "restore.log", "podman", "container", "restore", "-i", image)
	t.Logf("podman has moved %s after %v", name, time.Since(began))
}

// criu is run for a command whose log tells why it fails.
func (h *host) criu(t *testing.T, log string, argv ...string) {
	t.Helper()
	p := h.start(t, argv...)
	if p.Wait(t, minute) == 0 {
		return
	}
	var text strings.Builder
	filepath.WalkDir(fmt.Sprintf("/proc/%d/root/var/lib/containers", h.pid), func(path string, d os.DirEntry, err error) error {
		if err == nil && (d.Name() == log || d.Name() == "vrdma.log") {
			b, _ := os.ReadFile(path) // it is for the message only
			fmt.Fprintf(&text, "%s:\n%s\n", d.Name(), harness.Tail(string(b), 20))
		}
		return nil
	})
	t.Fatalf("%s: %s\n%s\n%s", p.Name, p.Fate(), p.Output(), text.String())
}

// goesOn waits until a program prints more.
func goesOn(t *testing.T, p *harness.Process) {
	t.Helper()
	before := len(p.Output())
	if !harness.Poll(minute, func() bool { return len(p.Output()) > before+4096 || p.Ended(0) }) || p.Ended(0) {
		t.Fatalf("%s does not go on: %s\n%s", p.Name, p.Fate(), harness.Tail(p.Output(), 5))
	}
}

// A container with a NIC moves to another host with podman's checkpoint and restore: its connections over RDMA go on. Its peer on
// the first host and its peer on the other check the data. It moves back. A checkpoint that leaves the container running interrupts it
// only.
func TestMigrate(t *testing.T) {
	m := newMovers(t)
	m.a.apply(t, tenants)
	m.begin(t, m.a, "web", "red.web", "rping", "-s", "-P", "-V", "-a", "10.1.0.1")
	m.a.listening(t, m.a.daemon, "10.1.0.1:7174")
	far := m.b.start(t, container{"bookworm", "red.db", nil}.argv("stdbuf", "-oL", "rping", "-c", "-v", "-V", "-a", "10.1.0.1")...)
	far.Printed(t, "ping data", minute)
	m.move(t, m.a, m.b, "web")
	goesOn(t, far)
	m.move(t, m.b, m.a, "web")
	goesOn(t, far)
	m.a.criu(t, "dump.log", "podman", "container", "checkpoint", "-R", "-e", "/tmp/copy.tar", "web")
	goesOn(t, far)
}

// A checkpoint that fails after the programs have let go leaves the container as it was: its connections go on. Then the container
// can move. A checkpoint that is restored on the same host goes on, too.
func TestMigrateFails(t *testing.T) {
	m := newMovers(t)
	m.a.apply(t, tenants)
	// CRIU meets the lock of a file after it has called the plugin, and refuses to dump it without an option.
	m.begin(t, m.a, "web", "red.web", "flock", "/tmp/lock", "rping", "-s", "-P", "-V", "-a", "10.1.0.1")
	m.a.listening(t, m.a.daemon, "10.1.0.1:7174")
	far := m.b.start(t, container{"bookworm", "red.db", nil}.argv("stdbuf", "-oL", "rping", "-c", "-v", "-V", "-a", "10.1.0.1")...)
	far.Printed(t, "ping data", minute)
	for range harness.Pick(2, 10) {
		p := m.a.start(t, "podman", "container", "checkpoint", "-e", "/tmp/web.tar", "web")
		if p.Wait(t, minute) == 0 {
			t.Fatalf("a container that holds a lock was dumped:\n%s", p.Output())
		}
		goesOn(t, far)
	}
	if log := m.a.daemon.Output(); !strings.Contains(log, "the programs of a NIC have let go") || !strings.Contains(log, "a NIC stays on this host") {
		t.Errorf("the checkpoints failed before the programs let go:\n%s", harness.Tail(log, 20))
	}
	m.a.criu(t, "dump.log", "podman", "container", "checkpoint", "--file-locks", "-e", "/tmp/web.tar", "web")
	m.a.run(t, "podman", "rm", "-f", "-t", "0", "web")
	m.a.criu(t, "restore.log", "podman", "container", "restore", "--file-locks", "-i", "/tmp/web.tar")
	goesOn(t, far)
	m.a.criu(t, "dump.log", "podman", "container", "checkpoint", "--file-locks", "-e", "/tmp/web.tar", "web")
	m.a.run(t, "podman", "rm", "-f", "-t", "0", "web")
	m.bring(t, m.a, m.b, "/tmp/web.tar")
	m.b.criu(t, "restore.log", "podman", "container", "restore", "--file-locks", "-i", "/tmp/web.tar")
	goesOn(t, far)
}

// shellTo is a remote shell from a host to another one: it leaves the command with its standard input in a directory, and waits for the
// result.
const shellTo = `#!/bin/sh
[ ! -e /tmp/cut ] || case $2 in *restore*) echo "the line is cut" >&2; exit 1;; esac
d=$(mktemp -d /tmp/shell.XXXXXX)
cat >$d/in
printf %s "$2" >$d/text
mv $d/text $d/command
while [ ! -e $d/status ]; do sleep 0.02; done
cat $d/out
exit $(cat $d/status)
`

// moveLive runs vrdma nic move --live on a host.
func (m *movers) moveLive(t *testing.T, from, to *host, nic, name string) *harness.Process {
	t.Helper()
	from.write(t, "/usr/bin/shell-to", shellTo)
	from.run(t, "chmod", "755", "/usr/bin/shell-to")
	p := from.start(t, "vrdma", "nic", "move", "--live", "--rsh", "shell-to", nic, name)
	for !p.Ended(20 * time.Millisecond) {
		asked, _ := filepath.Glob(fmt.Sprintf("/proc/%d/root/tmp/shell.*/command", from.pid)) // the pattern is fine
		for _, file := range asked {
			to.obey(t, filepath.Dir(file))
		}
	}
	return p
}

// obey runs the command that a remote shell has left in a directory.
func (h *host) obey(t *testing.T, dir string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "command"))
	if err != nil {
		t.Fatal(err)
	}
	in, err := os.Open(filepath.Join(dir, "in"))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	cmd := h.command(0, "sh", "-c", string(text))
	cmd.Stdin = in
	p := harness.Spawn(t, cmd)
	status := p.Wait(t, minute)
	os.Remove(filepath.Join(dir, "command")) // it is there
	for name, text := range map[string]string{"out": p.Output(), "code": fmt.Sprint(status)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(filepath.Join(dir, "code"), filepath.Join(dir, "status")); err != nil {
		t.Fatal(err)
	}
}

// One command moves a container: `vrdma nic move --live`. If the other host does not restore it, it continues where it was.
func TestMigrateCommand(t *testing.T) {
	m := newMovers(t)
	m.a.apply(t, tenants)
	m.begin(t, m.a, "web", "red.web", "rping", "-s", "-P", "-V", "-a", "10.1.0.1")
	m.a.listening(t, m.a.daemon, "10.1.0.1:7174")
	far := m.b.start(t, container{"bookworm", "red.db", nil}.argv("stdbuf", "-oL", "rping", "-c", "-v", "-V", "-a", "10.1.0.1")...)
	far.Printed(t, "ping data", minute)
	m.a.write(t, "/tmp/cut", "")
	if p := m.moveLive(t, m.a, m.b, "red/web", "b"); p.Wait(t, minute) == 0 || !strings.Contains(p.Output(), "continues on this host") || !strings.Contains(p.Output(), "the line is cut") {
		t.Fatalf("a move to a host that does not restore: %s\n%s", p.Fate(), p.Output())
	}
	goesOn(t, far)
	m.a.run(t, "rm", "/tmp/cut")
	if out := m.moveLive(t, m.a, m.b, "red/web", "b").OK(t, minute); !strings.Contains(out, "are on host b now") {
		t.Errorf("it says:\n%s", out)
	}
	goesOn(t, far)
	m.moveLive(t, m.b, m.a, "red/web", "a").OK(t, minute)
	goesOn(t, far)
	if p := m.moveLive(t, m.b, m.a, "red/web", "a"); p.Wait(t, minute) != 0 || !strings.Contains(p.Output(), "on host a already") {
		t.Errorf("a move to where it is: %s\n%s", p.Fate(), p.Output())
	}
}
