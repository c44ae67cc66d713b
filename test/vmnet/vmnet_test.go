package vmnet

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/test/guest"
	"vrdma.dev/vrdma/test/harness"
)

// limit is the limit for anything that involves a guest, which is emulated and shares the processors.
const limit = 3 * time.Minute

func TestMain(m *testing.M) { harness.Main(m) }

const declared = `
apiVersion: vrdma.io/v1
kind: Tenant
metadata: {name: red}
---
apiVersion: vrdma.io/v1
kind: Network
metadata: {name: train, tenant: red}
spec: {subnets: [10.1.0.0/24], mtu: 1400}
---
apiVersion: vrdma.io/v1
kind: NIC
metadata: {name: a, tenant: red}
spec: {network: train, address: 10.1.0.1}
---
apiVersion: vrdma.io/v1
kind: NIC
metadata: {name: b, tenant: red}
spec: {network: train, address: 10.1.0.2}
`

// denied forbids connections from a to one of b's ports.
const denied = `
apiVersion: vrdma.io/v1
kind: Policy
metadata: {name: closed, tenant: red}
spec: {nics: {names: [b]}, deny: [{direction: in, service: {space: tcp, ports: [7001]}}]}
`

// A daemon can be killed and started again at the same path, and upgraded.
type daemon struct {
	dir     string
	process *harness.Process // the first of upgraded ones
}

func (d *daemon) socket() string { return filepath.Join(d.dir, "vrdma.sock") }

// start starts it, until t ends.
func (d *daemon) start(t *testing.T) {
	t.Helper()
	// The log is a file, because the next daemon writes to the same output after the first has ended.
	d.process = harness.Spawn(t, exec.Command("sh", "-c", `log=$1; shift; exec "$@" >>"$log" 2>&1`, "sh", d.logFile(),
		harness.Binary(), "daemon", "--socket", d.socket(), "--store", filepath.Join(d.dir, "store"), "--addr", "127.0.0.1"))
	if !harness.Poll(limit, func() bool {
		_, err := protocol.QueryStatus(d.socket())
		return err == nil || d.process.Ended(0)
	}) || d.process.Ended(0) {
		t.Fatalf("the daemon is not ready\n%s", d.log())
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("daemon's log:\n%s", d.log())
		}
	})
}

func (d *daemon) logFile() string { return filepath.Join(d.dir, "log") }

// log is the end of the log of all daemons.
func (d *daemon) log() string {
	text, _ := os.ReadFile(d.logFile())
	return harness.Tail(string(text), 40)
}

// upgrade replaces the daemon by one of the same program, which ends with t.
func (d *daemon) upgrade(t *testing.T) {
	t.Helper()
	if out := d.command(t, "", "upgrade"); !strings.HasPrefix(out, "upgraded: pid ") {
		t.Errorf("vrdma upgrade says:\n%s", out)
	}
}

// ended waits until it has ended.
func (d *daemon) ended(t *testing.T) {
	t.Helper()
	if !d.process.Ended(limit) {
		t.Fatalf("the daemon does not end\n%s", d.log())
	}
}

// command runs a vrdma command and returns its output.
func (d *daemon) command(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	c := exec.Command(harness.Binary(), append([]string{"--socket", d.socket()}, args...)...)
	c.Stdin = strings.NewReader(stdin)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("vrdma %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// apply declares objects. The control socket appears a little later than the daemon's own.
func (d *daemon) apply(t *testing.T, text string) {
	t.Helper()
	var out []byte
	if !harness.Poll(limit, func() bool {
		c := exec.Command(harness.Binary(), "--socket", d.socket(), "apply", "-f", "-")
		c.Stdin = strings.NewReader(text)
		var err error
		out, err = c.CombinedOutput()
		return err == nil
	}) {
		t.Fatalf("apply: %s", out)
	}
}

// A machine describes a guest before it boots.
type machine struct {
	nic    string
	memory string // its kind of memory; "": a memfd
	queues int    // pairs of them
}

// args are QEMU's arguments for a machine.
func (d *daemon) args(t *testing.T, m machine) []string {
	t.Helper()
	text := d.command(t, "", "guest", "args", "--tcg", "-m", "256M", "--queues", fmt.Sprint(m.queues), m.nic)
	if m.memory != "" {
		text = strings.ReplaceAll(text, "memory-backend-memfd", m.memory)
	}
	return append(strings.Fields(text), "-name", "guest="+strings.ReplaceAll(m.nic, "red/", "vrdma-"))
}

// boot starts guests with NICs at the same time.
func (d *daemon) boot(t *testing.T, machines ...machine) []*guest.Guest {
	t.Helper()
	var list []*guest.Guest
	for _, m := range machines {
		list = append(list, guest.Start(t, guest.Config{Card: d.args(t, m)}))
	}
	for _, g := range list {
		g.AwaitStart(t)
	}
	return list
}

// sh runs a shell command in a guest, which must succeed.
func sh(t *testing.T, g *guest.Guest, format string, args ...any) string {
	t.Helper()
	return g.Run(t, limit, "sh", "-c", fmt.Sprintf(format, args...))
}

// fails reports whether a shell command in a guest fails.
func fails(t *testing.T, g *guest.Guest, command string) bool {
	t.Helper()
	p := g.Launch(t, "sh", "-c", command)
	if !p.Ended(limit) {
		t.Fatalf("%s does not end", command)
	}
	return p.Code() != 0
}

// TestGuests: two machines with stock kernels talk to each other through a daemon's switch, with sockets in the guest
// and nothing installed there.
func TestGuests(t *testing.T) {
	harness.Build(t)
	d := &daemon{dir: harness.Directory(t, nil)}
	d.start(t)
	d.apply(t, declared)
	// One has its memory in a file, and two pairs of queues.
	guests := d.boot(t, machine{nic: "red/a", queues: 1}, machine{nic: "red/b", queues: 2, memory: "memory-backend-file,mem-path=/dev/shm"})
	a, b := guests[0], guests[1]
	whole := t

	t.Run("address", func(t *testing.T) {
		for i, g := range guests {
			out := sh(t, g, "/usr/sbin/ip address show eth0")
			if want := fmt.Sprintf("inet 10.1.0.%d/24", i+1); !strings.Contains(out, want) || !strings.Contains(out, "mtu 1400") {
				t.Errorf("want %s and mtu 1400:\n%s", want, out)
			}
		}
	})
	t.Run("queues", func(t *testing.T) {
		sh(t, b, "[ -d /sys/class/net/eth0/queues/tx-1 ] && [ $(nproc) = 2 ]")
	})
	t.Run("ping", func(t *testing.T) {
		sh(t, a, "ping -c 3 -W 20 10.1.0.2")
		sh(t, b, "ping -c 3 -W 20 -s 3000 10.1.0.1") // fragments
	})
	long(t, "iperf3", func(t *testing.T) {
		for _, args := range []string{"-n 8M", "-n 8M -R", "-n 4M -P 16", "-n 100K -u -b 0 -l 1200"} {
			server := b.Launch(t, "iperf3", "-s", "-1") // one that has ended is not busy with the last client
			b.Await(t, server, 5201)
			t.Log(harness.Tail(sh(t, a, "iperf3 -c 10.1.0.2 %s", args), 4))
			if !server.Ended(limit) {
				t.Fatalf("the server does not end\n%s", server.Output())
			}
		}
	})
	t.Run("file", func(t *testing.T) {
		copyFile(t, a, b, "10.1.0.1", 8, nil)
	})
	t.Run("spoof", func(t *testing.T) {
		sh(t, a, "/usr/sbin/ip address add 10.1.0.9/24 dev eth0")
		if !fails(t, a, "ping -c 2 -W 2 -I 10.1.0.9 10.1.0.2") {
			t.Error("another's address is believed")
		}
		sh(t, a, "/usr/sbin/ip address del 10.1.0.9/24 dev eth0 && /usr/sbin/ip link set eth0 address 02:56:0a:01:00:09")
		if !fails(t, a, "ping -c 2 -W 2 10.1.0.2") {
			t.Error("another's MAC is believed")
		}
		sh(t, a, "/usr/sbin/ip link set eth0 address 02:56:0a:01:00:01 && ping -c 1 -W 20 10.1.0.2")
	})
	t.Run("policy", func(t *testing.T) {
		const connect = "timeout 150 wget -q -O /dev/null http://10.1.0.2:%d/passwd"
		for _, port := range []int{7001, 7002} {
			s := b.Launch(t, "busybox", "httpd", "-f", "-p", fmt.Sprint(port), "-h", "/etc")
			b.Await(t, s, port)
		}
		sh(t, a, connect, 7001)
		d.apply(t, denied)
		if !fails(t, a, "timeout 4 wget -q -O /dev/null http://10.1.0.2:7001/passwd") {
			t.Error("a connection that a rule denies is made")
		}
		sh(t, a, connect, 7002)
		d.command(t, "", "delete", "policy", "red/closed")
		sh(t, a, connect, 7001)
	})
	t.Run("rate", func(t *testing.T) {
		const size, rate = 4 << 20, 2_000_000 // bytes, bytes a second
		for _, object := range []string{
			"{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: a, tenant: red}, spec: {network: train, address: 10.1.0.1, rate: {%s}}}",
			"{apiVersion: vrdma.io/v1, kind: Tenant, metadata: {name: red}, spec: {rate: {%s}}}",
		} {
			d.apply(t, fmt.Sprintf(object, "out: 16Mbit"))
			began := time.Now()
			copyFile(t, a, b, "10.1.0.1", size>>20, nil)
			if took := time.Since(began); took < size*time.Second/rate*9/10 {
				t.Errorf("%d bytes took %v: more than %d a second", size, took, rate)
			}
			d.apply(t, fmt.Sprintf(object, ""))
		}
	})
	t.Run("in use", func(t *testing.T) {
		if out, err := exec.Command(harness.Binary(), "--socket", d.socket(), "delete", "nic", "red/a").CombinedOutput(); err == nil || !strings.Contains(string(out), "virtual machine") {
			t.Errorf("a NIC that a machine has is deleted: %v\n%s", err, out)
		}
	})
	t.Run("named and metered", func(t *testing.T) {
		if out := d.command(t, "", "top", "--once", "--every", "100ms"); !strings.Contains(out, "machine vrdma-a") {
			t.Errorf("the table does not name the machine:\n%s", out)
		}
		if out := d.command(t, "", "status"); !regexp.MustCompile(`(?m)^ +red +a .* machine vrdma-a +card$`).MatchString(out) {
			t.Errorf("the status does not name the machine, or say that UDP port 4791 is its own:\n%s", out)
		}
		var used struct {
			Records []struct {
				NIC  string
				Used map[string]uint64
			}
		}
		if err := json.Unmarshal([]byte(d.command(t, "", "usage", "-o", "json")), &used); err != nil {
			t.Fatal(err)
		}
		for _, r := range used.Records {
			// The file went from a to b, and a sent spoofed frames.
			if r.NIC == "a" && (r.Used["ethernet_transmit_bytes"] < 8<<20 || r.Used["ethernet_receive_frames"] == 0 || r.Used["dropped_spoof"] == 0) ||
				r.NIC == "b" && r.Used["ethernet_receive_bytes"] < 8<<20 {
				t.Errorf("NIC %s: %v", r.NIC, r.Used)
			}
		}
		if len(used.Records) < 2 {
			t.Errorf("records: %+v", used.Records)
		}
	})
	long(t, "daemon killed", func(t *testing.T) {
		copyFile(t, b, a, "10.1.0.2", 32, func() {
			d.process.Signal(syscall.SIGKILL)
			d.ended(t)
			d.start(whole)
		})
	})
	long(t, "daemon stopped", func(t *testing.T) {
		d.command(t, "", "stop")
		d.ended(t)
		d.start(whole)
		sh(t, a, "i=0; until ping -c 1 -W 2 10.1.0.2; do i=$((i+1)); [ $i -lt 60 ] || exit 1; sleep 1; done")
	})
	t.Run("daemon upgraded", func(t *testing.T) {
		whole.Cleanup(func() { exec.Command(harness.Binary(), "--socket", d.socket(), "stop").Run() }) // not a process of the test
		const limited = "{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: b, tenant: red}, spec: {network: train, address: 10.1.0.2, rate: {%s}}}"
		d.apply(t, fmt.Sprintf(limited, "out: 16Mbit")) // so that the transfer takes longer than the upgrades
		copyFile(t, b, a, "10.1.0.2", harness.Pick(8, 32), func() {
			for range harness.Pick(2, 10) {
				d.upgrade(t)
			}
		})
		d.apply(t, fmt.Sprintf(limited, ""))
		sh(t, b, "ping -c 1 -W 20 10.1.0.1")
	})
	t.Run("migrates on this host", func(t *testing.T) {
		// Two QEMUs with the NIC are connected with the daemon.
		c := a.Copy(t, guest.Config{Card: d.args(t, machine{nic: "red/a", queues: 1})})
		if out := d.command(t, "", "status"); strings.Count(out, "machine vrdma-a") != 1 {
			t.Errorf("the NIC is not the machine's alone:\n%s", out)
		}
		copyFile(t, b, a, "10.1.0.2", 8, func() { t.Log(a.Migrate(t, c)) })
		sh(t, b, "ping -c 1 -W 20 10.1.0.1")
	})
	t.Run("guest gone", func(t *testing.T) {
		b.Kill()
		if !harness.Poll(limit, func() bool {
			return !strings.Contains(d.command(t, "", "describe", "nic", "red/b"), "virtual machine")
		}) {
			t.Error("a machine that was killed still has its NIC")
		}
	})
	long(t, "again", func(t *testing.T) {
		hugePages(t, 128)
		b = d.boot(t, machine{nic: "red/b", queues: 1, memory: "memory-backend-memfd,hugetlb=on,hugetlbsize=2M"})[0]
		copyFile(t, a, b, "10.1.0.1", 60, nil)
	})
}

// hugePages makes the kernel reserve n pages of 2 MiB until the test ends.
func hugePages(t *testing.T, n int) {
	t.Helper()
	const file = "/sys/kernel/mm/hugepages/hugepages-2048kB/"
	read := func(name string) (n int) {
		b, err := os.ReadFile(file + name)
		if err == nil {
			n, err = strconv.Atoi(strings.TrimSpace(string(b)))
		}
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := read("nr_hugepages")
	set := func(n int) error { return os.WriteFile(file+"nr_hugepages", []byte(strconv.Itoa(n)), 0) }
	t.Cleanup(func() {
		if err := set(before); err != nil {
			t.Error(err)
		}
	})
	if err := set(before + n); err != nil {
		t.Fatal(err)
	}
	if free := read("free_hugepages"); free < n {
		t.Fatalf("%d huge pages are free, want %d: the machine has too little memory", free, n)
	}
}

// long runs a part of a test in the long form only.
func long(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	if harness.All() {
		t.Run(name, f)
	}
}

// copyFile copies n MiB over HTTP and compares checksums. meanwhile runs after a part has arrived.
func copyFile(t *testing.T, from, to *guest.Guest, address string, size int, meanwhile func()) {
	t.Helper()
	sh(t, from, "mkdir -p /tmp/web && dd if=/dev/urandom of=/tmp/web/file bs=1M count=%d 2>/dev/null", size)
	want, _, _ := strings.Cut(sh(t, from, "md5sum /tmp/web/file"), " ")
	server := from.Launch(t, "busybox", "httpd", "-f", "-p", "7000", "-h", "/tmp/web")
	from.Await(t, server, 7000)
	client := to.Launch(t, "sh", "-c", "wget -q -O /tmp/copy http://"+address+":7000/file && md5sum /tmp/copy")
	if meanwhile != nil {
		if !harness.Poll(limit, func() bool { return !fails(t, to, "test -s /tmp/copy") }) {
			t.Fatal("nothing arrives")
		}
		meanwhile()
	}
	if !client.Ended(limit) || !strings.Contains(client.Output(), want) {
		t.Errorf("the sum is %q: want %s (%s)", client.Output(), want, client.Fate())
	}
	server.End()
	sh(t, from, "rm /tmp/web/file")
	sh(t, to, "rm -f /tmp/copy")
}
