// Package networks tests virtual networks of several hosts that share a store: network namespaces
// with a daemon in each, a wire between them, and a real etcd, which each daemon reaches by a way of
// its own that can be cut.
//
//	namespace a                                   namespace b
//	  rping ── daemon ── VXLAN ── veth ── VXLAN ── daemon ── rping
//	             │ TLS                                │
//	             └────────────── etcd ────────────────┘
//
// VRDMA_TEST_ALL=1 asks for the long form. VRDMA_BESIDE=PATH runs another build of vrdma on all hosts but
// the first: old and new daemons side by side.
package networks

import (
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/cable"
	"vrdma.dev/vrdma/test/etcdtest"
	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

const minute = time.Minute

func TestMain(m *testing.M) {
	// Parallel tests mostly wait, so there may be more of them than processors. But each has its etcd members, which
	// miss heartbeats where too many tests share few processors.
	parallel := "5"
	if runtime.NumCPU() < 4 {
		parallel = "3"
	}
	flag.Set("test.parallel", parallel)
	harness.Main(m)
}

// A host is a namespace with a daemon.
type host struct {
	*harness.Daemon
	name  string
	space *cable.Namespace
	ip    string
	way   ways // to the store
	args  []string
}

// A lab is some hosts and their store.
type lab struct {
	etcd    *etcdtest.Cluster
	hosts   []*host
	cable   *cable.Cable // between more than two
	a, b, c *host        // the first of them
}

// newLab makes two hosts and starts their daemons.
func newLab(t *testing.T) *lab {
	t.Helper()
	return newLabOf(t, 2, 1)
}

// newLabOf makes hosts on one wire and starts their daemons, which share an etcd cluster.
func newLabOf(t *testing.T, hosts, members int, args ...string) *lab {
	t.Helper()
	return newLabWith(t, hosts, members, func(h *host) { h.start(t) }, args...)
}

// newLabWith is newLabOf with another way to start the daemons.
func newLabWith(t *testing.T, hosts, members int, start func(*host), args ...string) *lab {
	t.Helper()
	return newLabBeside(t, nil, hosts, members, start, args...)
}

// newLabBeside is newLabWith with other machines on the wire.
func newLabBeside(t *testing.T, others []cable.End, hosts, members int, start func(*host), args ...string) *lab {
	t.Helper()
	harness.Need(t, "nsenter", "ip", "rping")
	w := &lab{etcd: etcdtest.Start(t, members)}
	config := w.storeConfig(t)
	for i := range hosts {
		w.hosts = append(w.hosts, &host{name: string(rune('a' + i)), space: cable.NewNamespace(t), ip: fmt.Sprintf("10.99.0.%d", i+1)})
	}
	w.a, w.b = w.hosts[0], w.hosts[1]
	if hosts > 2 {
		w.c = w.hosts[2]
	}
	if hosts == 2 && others == nil {
		cable.Veth(t, w.a.space, w.b.space, "eth0", 1500)
	} else {
		ends := others
		for _, h := range w.hosts {
			ends = append(ends, cable.TAP(t, h.space, "eth0", 1500))
		}
		w.cable = cable.Connect(t, 1, ends...)
	}
	for _, h := range w.hosts {
		h.space.Address(t, "eth0", h.ip+"/24")
		for _, to := range w.etcd.Endpoints() {
			h.way = append(h.way, newWay(t, h.space, to))
		}
		h.args = append([]string{"--store", w.etcd.URL(), "--store-config", config, "--host-name", h.name, "--underlay", h.ip}, args...)
		start(h)
	}
	return w
}

// start starts the host's daemon.
func (h *host) start(t *testing.T) {
	t.Helper()
	o := harness.Options{Addr: h.ip, Network: h.space.Path(), Args: h.args}
	if h.name != "a" {
		o.Binary = os.Getenv("VRDMA_BESIDE")
	}
	h.Daemon = harness.Start(t, o)
}

// restart starts the daemon again at the same socket. At another socket it would be another daemon, which does not get
// the host's name while the old one may live.
func (h *host) restart(t *testing.T) {
	t.Helper()
	argv := append([]string{"--net=" + h.space.Path(), "--", h.Executable(), "daemon", "--socket", h.Socket, "--addr", h.ip}, h.args...)
	cmd := exec.Command("nsenter", argv...)
	dir := filepath.Dir(h.Socket)
	cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+dir, "XDG_STATE_HOME="+dir)
	h.Process = harness.Spawn(t, cmd)
	h.Process.Printed(t, "msg=serving", minute)
}

// storeConfig writes the file with the daemons' credentials for etcd.
func (w *lab) storeConfig(t *testing.T) string {
	t.Helper()
	path := filepath.Join(harness.Directory(t, nil), "etcd.yaml")
	text := fmt.Sprintf("ca: %s\ncertificate: %s\nkey: %s\n", w.etcd.CA, w.etcd.Certificate, w.etcd.Key)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// vrdma runs a command against the host's daemon.
func (h *host) vrdma(args ...string) (string, error) {
	out, err := h.Command(args...).CombinedOutput()
	return string(out), err
}

// must is vrdma for a command that must succeed.
func (h *host) must(t testing.TB, args ...string) string {
	t.Helper()
	out, err := h.vrdma(args...)
	if err != nil {
		t.Fatalf("vrdma %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// apply declares objects.
func (h *host) apply(t testing.TB, text string, flags ...string) (string, error) {
	t.Helper()
	path := filepath.Join(harness.Directory(t, nil), "objects.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return h.vrdma(append([]string{"apply", "-f", path}, flags...)...)
}

// declare is apply for objects that must be accepted. It retries while the store is away, which may happen for a moment
// on a busy machine.
func (h *host) declare(t testing.TB, text string, flags ...string) {
	t.Helper()
	var out string
	var err error
	harness.Poll(minute, func() bool {
		out, err = h.apply(t, text, flags...)
		return err == nil || !away(out)
	})
	if err != nil {
		t.Fatalf("apply: %v\n%s\n%s", err, out, text)
	}
}

// away reports whether a command says that the store does not answer.
func away(out string) bool {
	return strings.Contains(out, "has not answered") || strings.Contains(out, "does not answer") || strings.Contains(out, "; last heard of")
}

// program starts a program with a NIC.
func (h *host) program(t testing.TB, nic string, argv ...string) *harness.Process {
	t.Helper()
	return h.LaunchWith(t, []string{"--nic", nic}, argv...)
}

// A port is a NIC of a host where programs run. It implements harness.Machine.
type port struct {
	*host
	nic string
}

func (p port) Program(t testing.TB, argv ...string) harness.Program {
	return p.program(t, p.nic, argv...)
}

// side is the NIC as one side of a conversation. The two sides exchange their parameters over TCP in the underlay.
func (h *host) side(nic string) workload.Host { return workload.Host{Machine: port{h, nic}, IP: h.ip} }

// ready waits until a host has a NIC.
func (h *host) ready(t testing.TB, nics ...string) {
	t.Helper()
	for _, name := range nics {
		out := ""
		if !harness.Poll(minute, func() bool {
			out, _ = h.vrdma("get", "nic", name, "-o", "json")
			return strings.Contains(out, `"state": "ready"`) || strings.Contains(out, `"state":"ready"`)
		}) {
			t.Fatalf("host %s does not get NIC %s ready:\n%s", h.name, name, out)
		}
	}
}

// ways are a host's connections to all members of the store.
type ways []*way

// set cuts them, or restores them.
func (w ways) set(cut bool) {
	for _, one := range w {
		one.set(cut)
	}
}

// A way is a proxy from a namespace to the store, which is outside.
type way struct {
	to string
	mu sync.Mutex
	// cut closes its connections and refuses new ones.
	cut  bool
	open map[net.Conn]bool
	log  []string // what became of connections
}

func (w *way) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.log) < 20 {
		w.log = append(w.log, fmt.Sprintf(format, args...))
	}
}

func newWay(t testing.TB, n *cable.Namespace, to string) *way {
	t.Helper()
	w := &way{to: to, open: make(map[net.Conn]bool)}
	var l net.Listener
	var err error
	n.Do(t, func() { l, err = net.Listen("tcp", to) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.Close()
		w.set(true)
		if t.Failed() {
			t.Logf("the way to the store:\n%s", strings.Join(w.log, "\n"))
		}
	})
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go w.carry(c)
		}
	}()
	return w
}

// carry forwards one connection.
func (w *way) carry(c net.Conn) {
	defer c.Close()
	to, err := net.Dial("tcp", w.to)
	w.note("%v from %v: %v", c.LocalAddr(), c.RemoteAddr(), err)
	if err != nil {
		return
	}
	w.note("dialled %v -> %v", to.LocalAddr(), to.RemoteAddr())
	defer to.Close()
	w.mu.Lock()
	if w.cut {
		w.mu.Unlock()
		return
	}
	w.open[c], w.open[to] = true, true
	w.mu.Unlock()
	done := make(chan struct{}, 2)
	for _, pair := range [][2]net.Conn{{c, to}, {to, c}} {
		go func() {
			io.Copy(pair[0], pair[1])
			done <- struct{}{}
		}()
	}
	<-done
	w.mu.Lock()
	delete(w.open, c)
	delete(w.open, to)
	w.mu.Unlock()
}

// set cuts the way, or restores it.
func (w *way) set(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = cut
	if cut {
		for c := range w.open {
			c.Close()
		}
	}
}

// object is one object of a file.
func object(kind, meta, spec string) string {
	return fmt.Sprintf("---\napiVersion: vrdma.io/v1\nkind: %s\nmetadata: {%s}\nspec: {%s}\n", kind, meta, spec)
}

// twoTenants are two tenants with the same addresses: web, .1, on host a, and db, .2, on host b.
func twoTenants() string {
	text := ""
	for i, of := range []string{"red", "blue"} {
		text += object("Tenant", "name: "+of, "") + object("Network", "name: train, tenant: "+of, fmt.Sprintf("vni: %d, subnets: [10.1.0.0/24]", 100+i)) +
			object("NIC", "name: web, tenant: "+of, "network: train, address: 10.1.0.1, host: a") +
			object("NIC", "name: db, tenant: "+of, "network: train, address: 10.1.0.2, host: b")
	}
	return text
}
