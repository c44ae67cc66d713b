package drivers

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/instrument/experiment"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// testJob is a job between two hosts.
func testJob(c experiment.Cell) *Job {
	l := &testbed.Lab{Vrdma: "/lab/vrdma"}
	server, client := &testbed.Host{Lab: l, IP: "10.0.0.1", PID: 1, Socket: "/b"}, &testbed.Host{Lab: l, IP: "10.0.0.2", PID: 2, Socket: "/a"}
	return &Job{Cell: c, Route: testbed.Route{Server: server, Client: client}, Port: 12345, Seconds: 3}
}

// Every tool that an experiment can name has a driver, and its commands contain what the cell says.
func TestDrivers(t *testing.T) {
	for _, name := range experiment.ToolNames() {
		d, found := Tools[name]
		if !found {
			t.Errorf("no driver for %s", name)
			continue
		}
		j := testJob(experiment.Cell{Tool: name, Transport: experiment.Verbs, Size: 4096, Pairs: 1, Wait: experiment.Event})
		server, client := d.Commands(j)
		both := strings.Join(server, " ") + "|" + strings.Join(client, " ")
		if server != nil && (!strings.Contains(strings.Join(server, " "), "12345") || !strings.Contains(strings.Join(client, " "), "12345")) || !strings.Contains(both, "10.0.0.1") && name != "ibv_devinfo" {
			t.Errorf("%s: %s", name, both)
		}
		if strings.HasPrefix(name, "ib_") && (!slices.Contains(server, "-e") || slices.Contains(client, "4096") == strings.HasPrefix(name, "ib_atomic") || slices.Contains(client, "-D")) {
			t.Errorf("%s: %s: want events and a size, and no time, which perftest refuses with events", name, both)
		}
		for _, garbage := range []string{"", "Connection refused", "0 0 0 0 0\n", "{}", "[]"} {
			if p, err := d.Parse(j, garbage, garbage); err == nil {
				t.Errorf("%s: %q was a value: %v", name, garbage, p.Values)
			}
		}
	}
	if n := len(Tools); n != len(experiment.ToolNames()) {
		t.Errorf("%d drivers for %d tools", n, len(experiment.ToolNames()))
	}
}

// Parameters of perftest are recorded, so that the report can tell different runs apart.
func TestParameters(t *testing.T) {
	var m experiment.Measurement
	ReadParameters(" Number of qps   : 1\t\tTransport type : IB\n TX depth        : 1\n Mtu             : 1024[B]\n Max inline data : 236[B]\n", &m)
	if m.MTU != 1024 || m.Depth != 1 || m.Inline == nil || *m.Inline != 236 {
		t.Errorf("got MTU %d, depth %d, inline %v", m.MTU, m.Depth, m.Inline)
	}
	m = experiment.Measurement{}
	if ReadParameters("iperf3 says nothing of it", &m); m.MTU != 0 || m.Depth != 0 || m.Inline != nil {
		t.Errorf("of nothing: %+v", m)
	}
	j := testJob(experiment.Cell{Tool: "ib_write_bw", Transport: experiment.Verbs, Size: 64, Pairs: 1, Wait: experiment.Poll, QPs: 4})
	if _, client := Tools["ib_write_bw"].Commands(j); !strings.Contains(strings.Join(client, " "), " -q 4 ") {
		t.Errorf("four queue pairs: %v", client)
	}
}

// Parsers read captured output.
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
			// Half of the messages were lost.
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
		j.Seconds = 1
		got, err := Tools[test.tool].Parse(j, test.client, test.server)
		if err != nil {
			t.Errorf("%s: %v", test.tool, err)
			continue
		}
		for name, want := range test.want {
			if v := got.Values[name]; math.Abs(v-want) > 1e-6*want {
				t.Errorf("%s: %s is %v, want %v", test.tool, name, v, want)
			}
		}
	}
	seconds, err := ParseCopy("1 files, 953.7 MiB over RDMA in 0.812 s: 1.1 GiB/s\n")
	if err != nil || seconds != 0.812 {
		t.Errorf("vrdma cp: %v, %v", seconds, err)
	}
}

// A tool that ends successfully without a measurement has failed.
func TestNothingMeasured(t *testing.T) {
	for tool, output := range map[string]string{
		"fio_rdma":        `{"jobs": [{"error": 0, "write": {"io_bytes": 0, "bw_bytes": 0}}]}`,
		"sockperf_udp_bw": "Total of 10 messages sent in 0.000 sec",
		"mpi_transfer":    "transfer 1 bytes 4096 seconds 0\n",
		"NPtcp":           "4096 0.0 0.0\n",
		"kv_read":         `[{"way": "read", "mix": "reads", "operations": 0}]`,
	} {
		j := testJob(experiment.Cell{Tool: tool, Size: 4096, Pairs: 1})
		if got, err := Tools[tool].Parse(j, output, "Total 0 messages received"); err == nil {
			t.Errorf("%s: %v", tool, got.Values)
		}
	}
}

func FuzzParsers(f *testing.F) {
	f.Add("transfer 1 bytes 4096 seconds 0.1\n", "Total 5 messages received")
	f.Add("Total of 10 messages sent in 1.000 sec", "Total 5 messages received")
	f.Add(`{"jobs": [{"error": 0, "write": {"io_bytes": 1, "bw_bytes": 1}}]}`, "")
	f.Add("4096 1.5 0.00001\n", "")
	f.Fuzz(func(t *testing.T, client, server string) {
		for name, d := range Tools {
			j := testJob(experiment.Cell{Tool: name, Size: 4096, Pairs: 1})
			if name == "vrdma_cp" {
				continue // it looks for the file
			}
			d.Parse(j, client, server) // it must not panic
		}
	})
}
