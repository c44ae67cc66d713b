package test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/handover"
	"vrdma.dev/vrdma/internal/state"
	"vrdma.dev/vrdma/test/harness"
)

// Programs of every kind continue while the daemon is replaced several times: those that poll and those that sleep,
// over verbs, rdma_cm and sockets, all at the same time. The programs check their data and their completions.
func TestUpgrade(t *testing.T) {
	d := harness.StartUpgradable(t, harness.Options{})
	seconds := harness.Pick("4", "20")
	type pair struct {
		server, client []string
		managed        bool // the server listens with rdma_cm
		flags          []string
	}
	var running []*harness.Process
	for _, c := range []pair{
		{server: []string{"ib_write_bw", "-F", "-D", seconds}},
		{server: []string{"ib_read_bw", "-F", "-D", seconds, "-o", "4"}},
		{server: []string{"ib_atomic_bw", "-F", "-D", seconds}},
		{server: []string{"ib_send_bw", "-F", "-D", seconds, "-c", "UD"}},
		{server: []string{"ib_write_bw", "-F", "-D", seconds, "-c", "UC"}},
		{server: []string{"ib_send_bw", "-F", "-D", seconds, "-r", "64", "-q", "4"}},
		{server: []string{"ib_send_bw", "-F", "-e", "-n", "20000", "-s", "4096"}},
		{server: []string{"rping", "-s", "-V", "-a", "127.0.0.1", "-C", "3000", "-S", "500"},
			client: []string{"rping", "-c", "-V", "-a", "127.0.0.1", "-C", "3000", "-S", "500"}, managed: true},
		{server: []string{"iperf3", "-s", "-1", "-B", "127.0.0.1"}, client: []string{"iperf3", "-c", "127.0.0.1", "-t", seconds},
			managed: true, flags: []string{"--sockets"}},
	} {
		port := harness.FreePort(t)
		server, client := append(c.server, "-p", strconv.Itoa(port)), append(c.client, "-p", strconv.Itoa(port))
		if c.client == nil {
			client = append(append([]string{}, server...), "127.0.0.1")
		}
		s := d.LaunchWith(t, c.flags, server...)
		if c.managed {
			d.AwaitManaged(t, s, port)
		} else {
			harness.Listening(t, s, port, minute)
		}
		running = append(running, s, d.LaunchWith(t, c.flags, client...))
	}
	// Upgrades before, while and after the programs connect.
	for range harness.Pick(4, 20) {
		d.Upgrade(t)
	}
	for _, p := range running {
		p.OK(t, minute)
	}
}

// A successor that fails at any moment leaves the old daemon and its programs as they were.
func TestUpgradeFails(t *testing.T) {
	d := harness.StartUpgradable(t, harness.Options{})
	s := startStream(t, d, 0)
	pid := d.Status(t).Pid
	t.Run("no program", func(t *testing.T) {
		if out, err := d.Command("upgrade", "/bin/false").CombinedOutput(); err == nil || !strings.Contains(string(out), "continues") {
			t.Errorf("vrdma upgrade /bin/false: %v\n%s", err, out)
		}
	})
	for _, after := range []handover.Kind{handover.Hello, handover.Offer, handover.Ready, handover.State} {
		t.Run(fmt.Sprintf("ends after %v", after), func(t *testing.T) { d.FailUpgrade(t, after) })
	}
	t.Run("writes no format that is known", func(t *testing.T) {
		link := d.Approach(t)
		defer link.Close()
		if err := link.Send(handover.Ready, nil, nil); err != nil { // instead of hello
			t.Fatal(err)
		}
		if _, err := link.Receive(handover.Offer, nil); err == nil {
			t.Error("the daemon offers its sockets to a stranger")
		}
	})
	if now := d.Status(t).Pid; now != pid {
		t.Errorf("the daemon was process %d and is %d", pid, now)
	}
	d.Upgrade(t)
	stillRuns(t, s)
}

// Many upgrades in a row leave nothing behind.
func TestUpgradesDoNotLeak(t *testing.T) {
	d := harness.StartUpgradable(t, harness.Options{})
	s := startStream(t, d, 0)
	d.Upgrade(t)
	before := kinds(t, d.Status(t).Pid)
	for range harness.Pick(5, 100) {
		d.Upgrade(t)
	}
	var now, more map[string]int
	if !harness.Poll(minute, func() bool { // a connection of vrdma upgrade may still be ending
		now = kinds(t, d.Status(t).Pid)
		more = maps.Clone(now)
		maps.DeleteFunc(more, func(kind string, n int) bool { return n <= before[kind] })
		return len(more) == 0
	}) {
		t.Errorf("after many upgrades the daemon has more: %v; before %v, now %v", more, before, now)
	}
	stillRuns(t, s)
}

var anyNumber = regexp.MustCompile(`\d+`)

// kinds counts the descriptors of a process by what they are.
func kinds(t *testing.T, pid int) map[string]int {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	count := make(map[string]int)
	for _, e := range entries {
		to, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err == nil {
			count[anyNumber.ReplaceAllString(filepath.Base(to), "N")]++
		}
	}
	return count
}

// A declared NIC, its programs, its policies and its usage continue.
func TestUpgradeOfDeclaredNICs(t *testing.T) {
	d := harness.StartUpgradable(t, harness.Options{})
	file := filepath.Join(t.TempDir(), "objects.yaml")
	const objects = `
apiVersion: vrdma.io/v1
kind: Tenant
metadata: {name: red}
---
apiVersion: vrdma.io/v1
kind: Network
metadata: {tenant: red, name: net}
spec: {subnets: [10.77.0.0/24]}
---
apiVersion: vrdma.io/v1
kind: NIC
metadata: {tenant: red, name: a}
spec: {network: net, addresses: [10.77.0.10]}
---
apiVersion: vrdma.io/v1
kind: NIC
metadata: {tenant: red, name: b}
spec: {network: net}
`
	if err := os.WriteFile(file, []byte(objects), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := d.Command("apply", "-f", file).CombinedOutput(); err != nil {
		t.Fatalf("vrdma apply: %v\n%s", err, out)
	}
	server := d.LaunchWith(t, []string{"--nic", "red/a"}, "rping", "-s", "-V", "-C", "6000", "-S", "300")
	harness.Poll(minute, func() bool { return listening(t, d) || server.Ended(0) })
	const address = "10.77.0.10"
	client := d.LaunchWith(t, []string{"--nic", "red/b"}, "rping", "-c", "-V", "-a", address, "-C", "6000", "-S", "300")
	for range 3 {
		d.Upgrade(t)
	}
	client.OK(t, minute)
	server.OK(t, minute)
	out, err := d.Command("get", "nics").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "red/a") && !strings.Contains(string(out), "red ") {
		t.Errorf("vrdma get nics: %v\n%s", err, out)
	}
	if out, err := d.Command("apply", "-f", file).CombinedOutput(); err != nil {
		t.Errorf("vrdma apply after the upgrades: %v\n%s", err, out)
	}
}

// listening reports whether a program listens with rdma_cm.
func listening(t *testing.T, d *harness.Daemon) bool {
	for _, c := range d.Status(t).Connections {
		if strings.Contains(strings.ToLower(c.State), "listen") {
			return true
		}
	}
	return false
}

// Two ranks of Open MPI exchange and check data, and redis serves clients over RDMA, while the daemon is replaced again
// and again until they end.
func TestUpgradeUnderLibraries(t *testing.T) {
	harness.Need(t, "mpirun", "mpicc", "redis-check-rdb", "redis-cli", "redis-benchmark")
	prog := harness.CompileWith(t, "mpi", "mpicc")
	d := harness.StartUpgradable(t, harness.Options{})
	dir, port := t.TempDir(), harness.FreePort(t)
	server := filepath.Join(dir, "redis-server") // another name of a program in redis-tools
	if err := os.Symlink("/usr/bin/redis-check-rdb", server); err != nil {
		t.Fatal(err)
	}
	sockets := []string{"--sockets"}
	redis := d.LaunchWith(t, sockets, server, "--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--save", "", "--dir", dir)
	d.AwaitManaged(t, redis, port)
	load := d.LaunchWith(t, sockets, "redis-benchmark", "-p", strconv.Itoa(port), "-c", "8", "-n", harness.Pick("20000", "500000"), "-d", "4096", "-t", "set,get", "-q")
	ranks := d.Launch(t, "mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2",
		"--mca", "pml", "ucx", "--mca", "btl", "^openib,vader,tcp", "--mca", "osc", "ucx",
		"-x", "UCX_TLS=rc_v,self", "-x", "UCX_NET_DEVICES=rxe0:1", "-x", "UCX_LOG_LEVEL=warn", prog)
	const most = 100
	for n := 0; n < 2 || n < most && !(load.Ended(0) && ranks.Ended(0)); n++ {
		d.Upgrade(t)
	}
	load.OK(t, 2*minute)
	if out := ranks.OK(t, 2*minute); !strings.Contains(out, "ok rank 0 of 2") || !strings.Contains(out, "ok rank 1 of 2") {
		t.Errorf("want both ranks to report ok, got:\n%s", out)
	}
	d.Upgrade(t)
	if redis.Ended(0) {
		t.Fatalf("redis has ended: %s\n%s", redis.Fate(), redis.Output())
	}
	d.LaunchWith(t, sockets, "redis-cli", "-p", strconv.Itoa(port), "shutdown", "nosave").OK(t, minute)
	if out := redis.OK(t, minute); !strings.Contains(out, "none over TCP") {
		t.Errorf("redis used TCP:\n%s", out)
	}
}

// A daemon that serves programs in virtual machines refuses a next daemon that cannot take them over, and says what to do.
func TestUpgradeRefused(t *testing.T) {
	d := harness.StartUpgradable(t, harness.Options{Args: []string{"--guest", "default"}})
	link := d.Approach(t)
	defer link.Close()
	if err := link.Send(handover.Hello, harness.Greeting{Header: state.Own("test"), Pid: os.Getpid()}, nil); err != nil {
		t.Fatal(err)
	}
	_, err := link.Receive(handover.Offer, nil)
	if want := "programs in virtual machines (--guest), and the next version cannot take them over"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the daemon says %v, want %q", err, want)
	}
	d.Launch(t, "ibv_devinfo").OK(t, minute)
	d.Upgrade(t)
	d.Launch(t, "ibv_devinfo").OK(t, minute)
}
