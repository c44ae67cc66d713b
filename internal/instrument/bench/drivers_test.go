package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// testJob is one of a cell between two hosts.
func testJob(c experiment.Cell) *job {
	l := &Lab{Vrdma: "/lab/vrdma"}
	server, client := &Host{lab: l, IP: "10.0.0.1", pid: 1, Socket: "/b"}, &Host{lab: l, IP: "10.0.0.2", pid: 2, Socket: "/a"}
	return &job{cell: c, route: Route{Server: server, Client: client}, port: 12345, seconds: 3}
}

// Every tool that an experiment can name has a driver, and its commands say what the cell says.
func TestDrivers(t *testing.T) {
	for _, name := range experiment.ToolNames() {
		d, found := drivers[name]
		if !found {
			t.Errorf("no driver for %s", name)
			continue
		}
		j := testJob(experiment.Cell{Tool: name, Transport: experiment.Verbs, Size: 4096, Pairs: 1, Wait: experiment.Event})
		server, client := d.commands(j)
		both := strings.Join(server, " ") + "|" + strings.Join(client, " ")
		if server != nil && (!strings.Contains(strings.Join(server, " "), "12345") || !strings.Contains(strings.Join(client, " "), "12345")) || !strings.Contains(both, "10.0.0.1") && name != "ibv_devinfo" {
			t.Errorf("%s: %s", name, both)
		}
		if strings.HasPrefix(name, "ib_") && (!slices.Contains(server, "-e") || slices.Contains(client, "4096") == strings.HasPrefix(name, "ib_atomic") || slices.Contains(client, "-D")) {
			t.Errorf("%s: %s: want events and a size, and no time, which perftest refuses with events", name, both)
		}
		for _, garbage := range []string{"", "Connection refused", "0 0 0 0 0\n", "{}", "[]"} {
			if p, err := d.parse(j, garbage, garbage); err == nil {
				t.Errorf("%s: %q was a value: %v", name, garbage, p.values)
			}
		}
	}
	if n := len(drivers); n != len(experiment.ToolNames()) {
		t.Errorf("%d drivers for %d tools", n, len(experiment.ToolNames()))
	}
}

// How perftest measures is recorded, so that unlike runs are not drawn as alike.
func TestParameters(t *testing.T) {
	var m experiment.Measurement
	parameters(" Number of qps   : 1\t\tTransport type : IB\n TX depth        : 1\n Mtu             : 1024[B]\n Max inline data : 236[B]\n", &m)
	if m.MTU != 1024 || m.Depth != 1 || m.Inline == nil || *m.Inline != 236 {
		t.Errorf("got MTU %d, depth %d, inline %v", m.MTU, m.Depth, m.Inline)
	}
	m = experiment.Measurement{}
	if parameters("iperf3 says nothing of it", &m); m.MTU != 0 || m.Depth != 0 || m.Inline != nil {
		t.Errorf("of nothing: %+v", m)
	}
	j := testJob(experiment.Cell{Tool: "ib_write_bw", Transport: experiment.Verbs, Size: 64, Pairs: 1, Wait: experiment.Poll, QPs: 4})
	if _, client := drivers["ib_write_bw"].commands(j); !strings.Contains(strings.Join(client, " "), " -q 4 ") {
		t.Errorf("four queue pairs: %v", client)
	}
}

// What tools printed on a machine is read as what it was.
func TestParsers(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	tests := []struct {
		tool           string
		size           experiment.Size
		client, server string
		want           map[string]float64
	}{
		{"fio_rdma", 65536, read("fio.json"), "", map[string]float64{experiment.Bandwidth: 8437121}},
		{"rc_lat", 64, read("qperf-rc_lat.txt"), "", map[string]float64{experiment.Latency: 54121e-9, experiment.Rate: 18477}},
		{"sockperf_udp_bw", 1472, read("sockperf-throughput-udp.txt"), read("sockperf-throughput-udp-server.txt"),
			// Half of what was sent never arrived.
			map[string]float64{experiment.Rate: 65686, experiment.Bandwidth: 65686 * 1472, "lost": 1 - 65686.0/136913}},
		{"kv_update", 0, read("lab.json"), "", map[string]float64{experiment.Latency: 42.213e-6, experiment.Rate: 500.0114431943874, "p99": 26483.92e-6}},
		{"NPopenmpi", 2, read("netpipe-mpi.txt"), "", map[string]float64{experiment.Latency: 4.51e-6, experiment.Bandwidth: 2 / 4.51e-6}},
		{"mpi_transfer", 1000, "transfer 2 bytes 1000 seconds 0.5\nnoise\ntransfer 1 bytes 1000 seconds 0.25\n", "",
			map[string]float64{experiment.Time: 0.375, experiment.Bandwidth: 4000}},
		{"cmtime", 0, read("cmtime.txt"), "", nil},
		{"ibv_devinfo", 0, read("ibv_devinfo.txt"), "", map[string]float64{experiment.Bandwidth: 100e9 / 8}},
	}
	for _, test := range tests {
		j := testJob(experiment.Cell{Tool: test.tool, Size: test.size, Pairs: strings.Count(test.client, "transfer ")})
		j.seconds = 1
		got, err := drivers[test.tool].parse(j, test.client, test.server)
		if err != nil {
			t.Errorf("%s: %v", test.tool, err)
			continue
		}
		for name, want := range test.want {
			if v := got.values[name]; math.Abs(v-want) > 1e-6*want {
				t.Errorf("%s: %s is %v, want %v", test.tool, name, v, want)
			}
		}
	}
	seconds, err := ParseCopy("1 files, 953.7 MiB over RDMA in 0.812 s: 1.1 GiB/s\n")
	if err != nil || seconds != 0.812 {
		t.Errorf("vrdma cp: %v, %v", seconds, err)
	}
}

// Tools that end well without having measured anything are failures.
func TestNothingMeasured(t *testing.T) {
	for tool, output := range map[string]string{
		"fio_rdma":        `{"jobs": [{"error": 0, "write": {"io_bytes": 0, "bw_bytes": 0}}]}`,
		"sockperf_udp_bw": "Total of 10 messages sent in 0.000 sec",
		"mpi_transfer":    "transfer 1 bytes 4096 seconds 0\n",
		"NPtcp":           "4096 0.0 0.0\n",
		"kv_read":         `[{"way": "read", "mix": "reads", "operations": 0}]`,
	} {
		j := testJob(experiment.Cell{Tool: tool, Size: 4096, Pairs: 1})
		if got, err := drivers[tool].parse(j, output, "Total 0 messages received"); err == nil {
			t.Errorf("%s: %v", tool, got.values)
		}
	}
}

func FuzzParsers(f *testing.F) {
	f.Add("transfer 1 bytes 4096 seconds 0.1\n", "Total 5 messages received")
	f.Add("Total of 10 messages sent in 1.000 sec", "Total 5 messages received")
	f.Add(`{"jobs": [{"error": 0, "write": {"io_bytes": 1, "bw_bytes": 1}}]}`, "")
	f.Add("4096 1.5 0.00001\n", "")
	f.Fuzz(func(t *testing.T, client, server string) {
		for name, d := range drivers {
			j := testJob(experiment.Cell{Tool: name, Size: 4096, Pairs: 1})
			if name == "vrdma_cp" {
				continue // looks for the file
			}
			d.parse(j, client, server) // whatever it says: no crash
		}
	})
}

func TestProof(t *testing.T) {
	tests := []struct {
		transport string
		bytes     float64
		packets   float64
		wrong     bool
	}{
		{experiment.TCP, 0, 0, false}, {experiment.TCP, 4096, 0, true}, {experiment.Verbs, 4096, 0, false}, {experiment.Sockets, 0, 0, true},
		{experiment.Kernel, 0, 9, false}, {experiment.Kernel, 0, 0, true}, {experiment.Kernel, 1, 9, true}, {experiment.Overlay, 1, 0, true},
	}
	atomics := experiment.Cell{Transport: experiment.Verbs, Tool: "ib_atomic_bw"} // have no data
	if got := proof(atomics, &experiment.Measurement{Packets: 7}); got != "the device's counters: 7 packets sent" {
		t.Errorf("atomics: %s", got)
	}
	if got := proof(atomics, &experiment.Measurement{}); !strings.HasPrefix(got, "WRONG") {
		t.Errorf("no atomics: %s", got)
	}
	for _, test := range tests {
		got := proof(experiment.Cell{Transport: test.transport}, &experiment.Measurement{Bytes: test.bytes, Packets: test.packets})
		if strings.HasPrefix(got, "WRONG") != test.wrong {
			t.Errorf("%s with %v bytes: %s", test.transport, test.bytes, got)
		}
	}
}

// Lines that came in a time are found, and no others.
func TestTranscript(t *testing.T) {
	begin := time.Now()
	at := func(second float64) time.Time { return begin.Add(time.Duration(second * float64(time.Second))) }
	var said transcript
	for i := range 4 {
		said.lines = append(said.lines, stampedLine{at(float64(i + 1)), []float64{float64(i + 1)}})
	}
	got := said.between(at(1.5), at(3.6))
	if len(got) != 2 || got[0].numbers[0] != 2 || got[1].numbers[0] != 3 {
		t.Errorf("lines between 1.5 s and 3.6 s: %v, want those of 2 s and 3 s", got)
	}
}

// The bandwidth of two clients is that of their lines in the window.
func TestWindow(t *testing.T) {
	lines := func(rates ...float64) (list []stampedLine) {
		for _, rate := range rates {
			list = append(list, stampedLine{numbers: []float64{65536, 1000, 0, rate, 0.5}})
		}
		return list
	}
	var m experiment.Measurement
	if err := collectRows([]couple{{rows: lines(100, 120)}, {rows: lines(100, 300)}}, &m); err != nil {
		t.Fatal(err)
	}
	if got, want := m.Values[experiment.Bandwidth], float64(110+200)*mebibyte; got != want {
		t.Errorf("together %v, want %v", got, want)
	}
	if got := m.Values["slowest"]; got != 110.0/200 {
		t.Errorf("the slowest has %v of the fastest's", got)
	}
	counted(experiment.Cell{Size: 1000}, 5000, &m)
	if m.Values[experiment.Bandwidth] != 5000 || m.Values[experiment.Rate] != 5 || m.Values["claimed"] != 310*mebibyte {
		t.Errorf("what was counted is not the value: %v", m.Values)
	}
	if err := collectRows([]couple{{rows: lines(10, 100)}, {}}, &m); !errors.Is(err, experiment.ErrBusy) {
		t.Errorf("a client that reported nothing: %v", err)
	}
}

// atRest is a server that does nothing.
type atRest struct{}

func (atRest) used() (time.Duration, error)                    { return 0, nil }
func (atRest) end(time.Duration, bool) (string, time.Duration) { return "", 0 }

// A window stays open until every client has said something of it: one whose lines come late is not cut off, and one
// that ends instead is a failure.
func TestWindowWaits(t *testing.T) {
	for _, test := range []struct {
		name, then string
		fine       bool
	}{{"late", "while sleep 1.5; do echo 65536 1000 0 100 0.5; done", true}, {"ended", "sleep 1.5; exit 1", false}, {"ended early", "exit 1", false}} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			argv := []string{"sh", "-c", "echo 65536 1000 0 999 0.5; " + test.then}
			c, err := (&Lab{Dir: t.TempDir()}).start(ctx, argv)
			if err != nil {
				t.Fatal(err)
			}
			defer c.end(0, false)
			nothing := func() error { return nil }
			f := &frame{length: 10 * time.Millisecond, open: nothing, close: nothing}
			list := []couple{{commands: [][]string{{"server"}, argv}}}
			err = f.watch(ctx, list, []*started{c}, []server{atRest{}})
			if !test.fine {
				if !errors.Is(err, errEnded) {
					t.Errorf("a client that ended: %v", err)
				}
				return
			}
			// On a busy machine the window opens late, and the first of these lines is not one of its.
			if err != nil || len(list[0].rows) == 0 || f.ended.Sub(f.opened) < time.Second {
				t.Errorf("%v, rows %v, open for %v", err, list[0].rows, f.ended.Sub(f.opened))
			}
			for _, row := range list[0].rows {
				if row.numbers[3] != 100 {
					t.Errorf("a row of before the window: %v", row)
				}
			}
		})
	}
}

// A tool that hangs is ended with its server, and the reason says how long it was waited for.
func TestHangs(t *testing.T) {
	limit := 2 * time.Second
	ctx, cancel := context.WithTimeoutCause(t.Context(), limit, tooLong(limit))
	defer cancel()
	h := &Host{lab: &Lab{Dir: t.TempDir()}, IP: "127.0.0.1"}
	d := driver{commands: func(*job) (server, client []string) {
		return []string{"sleep", "1000"}, []string{"sleep", "1001"}
	}}
	w := way{"test", (*Host).At, func(*Host, int) func() bool { return func() bool { return true } }}
	_, err := h.loop().couples(ctx, w, d, []*job{{route: h.loop()}}, nil)
	if err == nil || !strings.Contains(err.Error(), "sleep 1001: took longer than 2s") {
		t.Errorf("a client that hangs: %v", err)
	}
	// Whoever reads that sees whether it waited or had too little of the processor.
	if err != nil && !strings.Contains(err.Error(), "sleep (1, of which 0 run) had 0.0 s of processor time") {
		t.Errorf("what it was doing is not said: %v", err)
	}
	children, _ := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/children", os.Getpid())) // other threads' are not in it
	for word := range strings.FieldsSeq(string(children)) {
		if line, _ := os.ReadFile("/proc/" + word + "/cmdline"); strings.HasPrefix(string(line), "sleep\x00100") {
			t.Errorf("%q is left", line)
		}
	}
}

// Ranks of MPI leave the process group of who started them, and are found by their control group.
func TestDoing(t *testing.T) {
	a := newAccounts()
	if a == nil {
		t.Skip("this machine lets us make no control groups")
	}
	defer a.close()
	a.is("client")
	defer a.is("")
	c := exec.CommandContext(t.Context(), "sh", "-c", "sleep 1001 & sleep 1002 & while :; do :; done")
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	begin, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer begin.Close()
	c.Args[2] = "read go; " + c.Args[2]
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
		c.Wait()
		// Its children are not ours to wait for, and a group with one of them stays.
		for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			left, err := os.ReadFile(filepath.Join(a.parent, "client", "cgroup.procs"))
			if err != nil || len(left) == 0 {
				return
			}
			if time.Now().After(end) {
				t.Errorf("left in the control group: %s", left)
				return
			}
		}
	}()
	a.charge(c.Process.Pid)
	fmt.Fprintln(begin, "go")
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		got := a.doing(-1)
		if strings.Contains(got, "sleep (2, of which 0 run) had 0.0 s of processor time") && strings.Contains(got, "sh (1, of which 1 run)") {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("doing: %q", got)
		}
	}
}

// A switch without memory goes on without ports, and guests do not find each other: that is said at once.
func TestOVSFailure(t *testing.T) {
	log := "2026-11-16T23:02:22.570Z|00166|netdev_dpdk|INFO|vHost Device 'b' has been added on numa node 0\n"
	if got := ovsFailure(log); got != "" {
		t.Errorf("nothing is wrong, but %q", got)
	}
	log += "2026-11-16T23:02:22.570Z|00079|netdev_dpdk|ERR|Failed to create memory pool for netdev v1, with MTU 1500 on socket 0: No buffer space available\n"
	if got, want := ovsFailure(log), "Failed to create memory pool for netdev v1, with MTU 1500 on socket 0: No buffer space available"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A link has a rate, a delay, both or neither.
func TestShaping(t *testing.T) {
	tests := []struct {
		rate, delay string
		want        []string
	}{
		{"", "", nil},
		{"1gbit", "", []string{"root tbf rate 1gbit"}},
		{"", "1ms", []string{"root handle 1: netem delay 1ms"}},
		{"1gbit", "1ms", []string{"root handle 1: netem delay 1ms", "parent 1:1 tbf rate 1gbit"}},
	}
	for _, test := range tests {
		got := shaping(experiment.Cell{Rate: test.rate, Delay: test.delay})
		if len(got) != len(test.want) {
			t.Errorf("%q %q: %v", test.rate, test.delay, got)
			continue
		}
		for i, argv := range got {
			if !strings.HasPrefix(strings.Join(argv, " "), "tc qdisc add dev eth0 "+test.want[i]) {
				t.Errorf("%q %q: %v, want %s", test.rate, test.delay, argv, test.want[i])
			}
		}
	}
}

// The limit of a link is its rate without headers: the ratio of two path MTUs is what a thesis took for the
// price of SR-IOV.
func TestBound(t *testing.T) {
	limit := func(mtu int) float64 {
		m := experiment.Measurement{Values: map[string]float64{experiment.Bandwidth: 1}, MTU: mtu}
		(&Instrument{}).bound(experiment.Cell{Transport: experiment.Verbs, Rate: "100gbit", Size: 64 << 10, Setting: experiment.Hosts}, &m)
		return m.Limit
	}
	if got := limit(4096) / (1 << 20); math.Abs(got-11687) > 1 {
		t.Errorf("100 Gb/s at path MTU 4096 carry %.1f MiB/s, want 11687", got)
	}
	if got := limit(1024) / limit(4096); math.Abs(got-0.944) > 0.001 {
		t.Errorf("path MTU 1024 has %.4f of 4096, want 0.944", got)
	}
}
