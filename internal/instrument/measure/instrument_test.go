package measure

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/instrument/drivers"
	"vrdma.dev/vrdma/internal/instrument/experiment"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

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
	atomics := experiment.Cell{Transport: experiment.Verbs, Tool: "ib_atomic_bw"} // they have no data
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

// The bandwidth of two clients is that of their lines in the window.
func TestWindow(t *testing.T) {
	lines := func(rates ...float64) (list []testbed.TimedLine) {
		for _, rate := range rates {
			list = append(list, testbed.TimedLine{Numbers: []float64{65536, 1000, 0, rate, 0.5}})
		}
		return list
	}
	var m experiment.Measurement
	if err := collectRows([]pairResult{{rows: lines(100, 120)}, {rows: lines(100, 300)}}, &m); err != nil {
		t.Fatal(err)
	}
	if got, want := m.Values[experiment.Bandwidth], float64(110+200)*drivers.MiB; got != want {
		t.Errorf("together %v, want %v", got, want)
	}
	if got := m.Values["slowest"]; got != 110.0/200 {
		t.Errorf("the slowest has %v of the fastest's", got)
	}
	useCounted(experiment.Cell{Size: 1000}, 5000, &m)
	if m.Values[experiment.Bandwidth] != 5000 || m.Values[experiment.Rate] != 5 || m.Values["claimed"] != 310*drivers.MiB {
		t.Errorf("what was counted is not the value: %v", m.Values)
	}
	if err := collectRows([]pairResult{{rows: lines(10, 100)}, {}}, &m); !errors.Is(err, experiment.ErrBusy) {
		t.Errorf("a client that reported nothing: %v", err)
	}
}

// idleServer is a server that does nothing.
type idleServer struct{}

func (idleServer) CPUTime() (time.Duration, error) { return 0, nil }

func (idleServer) Stop(time.Duration, bool) (string, time.Duration) { return "", 0 }

// A window stays open until every client has printed a line inside of it. A client with late lines is not cut off; a client that ends
// is a failure.
func TestWindowWaits(t *testing.T) {
	for _, test := range []struct {
		name, then string
		fine       bool
	}{{"late", "while sleep 1.5; do echo 65536 1000 0 100 0.5; done", true}, {"ended", "sleep 1.5; exit 1", false}, {"ended early", "exit 1", false}} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			argv := []string{"sh", "-c", "echo 65536 1000 0 999 0.5; " + test.then}
			c, err := (&testbed.Lab{Dir: t.TempDir()}).Start(ctx, argv)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Stop(0, false)
			nothing := func() error { return nil }
			f := &window{length: 10 * time.Millisecond, open: nothing, close: nothing}
			list := []pairResult{{commands: [][]string{{"server"}, argv}}}
			err = f.watch(ctx, list, []*testbed.Process{c}, []testbed.Server{idleServer{}})
			if !test.fine {
				if !errors.Is(err, testbed.ErrEnded) {
					t.Errorf("a client that ended: %v", err)
				}
				return
			}
			// On a busy machine the window may open after the first of these lines.
			if err != nil || len(list[0].rows) == 0 || f.ended.Sub(f.opened) < time.Second {
				t.Errorf("%v, rows %v, open for %v", err, list[0].rows, f.ended.Sub(f.opened))
			}
			for _, row := range list[0].rows {
				if row.Numbers[3] != 100 {
					t.Errorf("a row of before the window: %v", row)
				}
			}
		})
	}
}

// A tool that hangs is stopped with its server, and the error has the timeout.
func TestHangs(t *testing.T) {
	limit := 2 * time.Second
	ctx, cancel := context.WithTimeoutCause(t.Context(), limit, testbed.Timeout(limit))
	defer cancel()
	h := &testbed.Host{Lab: &testbed.Lab{Dir: t.TempDir()}, IP: "127.0.0.1"}
	d := drivers.Driver{Commands: func(*drivers.Job) (server, client []string) {
		return []string{"sleep", "1000"}, []string{"sleep", "1001"}
	}}
	w := testbed.Launcher{Name: "test", Command: (*testbed.Host).At, Ready: func(*testbed.Host, int) func() bool { return func() bool { return true } }}
	_, err := runPairs(ctx, h.Loopback(), w, d, []*drivers.Job{{Route: h.Loopback()}}, nil)
	if err == nil || !strings.Contains(err.Error(), "sleep 1001: took longer than 2s") {
		t.Errorf("a client that hangs: %v", err)
	}
	// The error tells a waiting program from one without processor time.
	if err != nil && !strings.Contains(err.Error(), "sleep (1, of which 0 run) had 0.0 s of processor time") {
		t.Errorf("what it was doing is not said: %v", err)
	}
	children, _ := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/children", os.Getpid())) // it lists the children of this thread only
	for word := range strings.FieldsSeq(string(children)) {
		if line, _ := os.ReadFile("/proc/" + word + "/cmdline"); strings.HasPrefix(string(line), "sleep\x00100") {
			t.Errorf("%q is left", line)
		}
	}
}

// The limit of a link is its rate without headers. A thesis took the ratio of two path MTUs for the price of SR-IOV.
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

// TestShareNeedsServer: a tool without a server of its own is rejected.
func TestShareNeedsServer(t *testing.T) {
	h := &testbed.Host{Enter: []string{"nsenter"}}
	jobs := []*drivers.Job{{Cell: experiment.Cell{Tool: "mpi_transfer", Pairs: 1, Share: 50}, Route: testbed.Route{Client: h, Server: h}}}
	if _, err := runPairs(t.Context(), (testbed.Route{}), testbed.Plain, drivers.Tools["mpi_transfer"], jobs, nil); err == nil || !strings.Contains(err.Error(), "mpi_transfer has no server of its own") {
		t.Errorf("a tool with one command: %v", err)
	}
}

// TestDealt: pairs are distributed over the containers of both sides. A tool that runs all pairs with one command has all routes.
func TestDealt(t *testing.T) {
	l := &testbed.Lab{Vrdma: "/lab/vrdma", Dir: t.TempDir()}
	host := func(ip string) *testbed.Host { return &testbed.Host{Lab: l, IP: ip, PID: 1, Socket: l.Dir + "/" + ip} }
	routes := []testbed.Route{{Client: host("1.1"), Server: host("2.1")}, {Client: host("1.2"), Server: host("2.2")}}
	c := experiment.Cell{Setting: experiment.Containers, Transport: experiment.TCP, Tool: "tcp_bw", Pairs: 4, PerSide: 2, Size: 64}
	jobs, err := makeJobs(t.Context(), l, drivers.Tools["tcp_bw"], c, routes, nil, length{seconds: 1})
	if err != nil || len(jobs) != 4 {
		t.Fatalf("%d jobs: %v", len(jobs), err)
	}
	for i, want := range []string{"2.1", "2.2", "2.1", "2.2"} {
		if jobs[i].ServerIP() != want {
			t.Errorf("pair %d has its server at %s, want %s", i, jobs[i].ServerIP(), want)
		}
	}
	j := &drivers.Job{Cell: c, Route: routes[0], Routes: routes}
	if err := os.WriteFile(filepath.Join(l.Dir, "transfer"), nil, 0o755); err != nil { // so that it is not built
		t.Fatal(err)
	}
	mpi := drivers.Tools["mpi_transfer"]
	if err := mpi.Prepare(t.Context(), l, j); err != nil {
		t.Fatal(err)
	}
	_, client := mpi.Commands(j)
	argv := strings.Join(client, " ")
	if !strings.Contains(argv, "--host 1.1:2,2.1:2,1.2:2,2.2:2 ") {
		t.Errorf("%s: want two ranks on each host, clients and servers in turn", argv)
	}
	script, err := os.ReadFile(j.Dir)
	for _, r := range routes {
		if !strings.Contains(string(script), r.Client.IP+") exec ") || !strings.Contains(string(script), r.Server.IP+") exec ") {
			t.Errorf("%v: nobody is started at %s or %s:\n%s", err, r.Client.IP, r.Server.IP, script)
		}
	}
}

// The second run of a cell is long enough that start-up does not matter, and tools that do one transfer have none.
func TestSecondLength(t *testing.T) {
	for _, test := range []struct {
		cell     experiment.Cell
		latency  float64
		seconds  int
		want     length
		longer   bool
		sensible bool
	}{
		{experiment.Cell{Tool: "ib_send_lat"}, 2e-5, 2, length{2, 60_000}, true, true},
		{experiment.Cell{Tool: "ib_read_lat"}, 4e-5, 1, length{1, 35_000}, true, true},
		{experiment.Cell{Tool: "ib_send_lat"}, 1e-9, 1, length{1, 10_000 + mostMessages}, true, true},
		{experiment.Cell{Tool: "ib_write_bw"}, 0, 2, length{1, 0}, false, true},
		{experiment.Cell{Tool: "tcp_bw"}, 0, 1, length{3, 0}, true, true},
		{experiment.Cell{Tool: "mpi_transfer"}, 0, 2, length{}, false, false},
		{experiment.Cell{Tool: "ib_write_bw", Setting: experiment.VMs}, 0, 2, length{}, false, false},
	} {
		m := experiment.Measurement{Samples: 10_000, Values: map[string]float64{experiment.Latency: test.latency}}
		got, longer, sensible := secondLength(test.cell, drivers.Tools[test.cell.Tool], &m, test.seconds)
		if got != test.want || longer != test.longer || sensible != test.sensible {
			t.Errorf("%s: %+v %v %v, want %+v %v %v", test.cell.Tool, got, longer, sensible, test.want, test.longer, test.sensible)
		}
	}
}
