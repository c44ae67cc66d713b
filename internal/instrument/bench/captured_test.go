package bench

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// captured is what a tool printed once; testdata/README.md says where and when.
func captured(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*math.Abs(b) }

func TestParseCaptured(t *testing.T) {
	iperf3 := func(out string) ([]float64, error) {
		rate, bytes, err := ParseIperf3(out)
		return []float64{rate, float64(bytes)}, err
	}
	qperf := func(out string) ([]float64, error) {
		v, err := ParseQperf(out)
		return []float64{v["latency"], v["msg_rate"]}, err
	}
	sockperf := func(out string) ([]float64, error) {
		p, err := ParseSockperf(out)
		return []float64{p.Median, p.Average, float64(p.Messages)}, err
	}
	netpipe := func(out string) ([]float64, error) {
		v, err := ParseNetpipe(out, 64)
		return []float64{v}, err
	}
	cmtime := func(out string) ([]float64, error) {
		v, err := ParseCmtime(out)
		return []float64{v}, err
	}
	text := func(name string) string { return captured(t, name) }
	tests := []struct {
		name, output string
		parse        func(string) ([]float64, error)
		want         []float64
		fails        string
	}{
		{"iperf3", text("iperf3.json"), iperf3, []float64{13214601384.567873 / 8, 1652817920}, ""},
		{"iperf3 refused", text("iperf3-refused.json"), iperf3, nil, "Connection refused"},
		{"iperf3 without -J", "iperf3: error - unable to connect\n", iperf3, nil, "no JSON"},
		{"iperf3 that never came to an end", `{"start":{},"end":{}}`, iperf3, nil, "no bytes"},
		{"qperf", text("qperf-tcp_lat.txt"), qperf, []float64{10776e-9, 92802}, ""},
		{"sockperf", text("sockperf.txt"), sockperf, []float64{7.1e-6, 10.808e-6, 49250}, ""},
		{"sockperf that failed", "sockperf: ERROR: sendto() Failed\n", sockperf, nil, "sendto() Failed"},
		{"sockperf that got no answer", text("sockperf-unanswered.txt"), sockperf, nil, "Is the server down?"},
		{"sockperf, no number", strings.Replace(text("sockperf.txt"), "7.100", "n/a", 1), sockperf, nil, "want a number"},
		{"netpipe", text("netpipe.txt"), netpipe, []float64{7.46e-6}, ""},
		{"netpipe, another size", "      61 65.209040   0.00000714\n", netpipe, nil, "no line for 64 bytes"},
		{"cmtime", text("cmtime.txt"), cmtime, []float64{2.8754}, ""},
		{"cmtime that failed", "event: RDMA_CM_EVENT_REJECTED, error: 8\n", cmtime, nil, "REJECTED"},
		{"cmtime, no number", strings.Replace(text("cmtime.txt"), "1286.79", "-nan?", 1), cmtime, nil, "want milliseconds"},
		{"cmtime that stopped in the middle", strings.Split(text("cmtime.txt"), "disconnect  ")[0], cmtime, nil, "no table"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := test.parse(test.output)
			if test.fails != "" {
				if err == nil || !strings.Contains(err.Error(), test.fails) {
					t.Errorf("got %v, %v, want an error with %q", got, err, test.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for i, want := range test.want {
				if !near(got[i], want) {
					t.Errorf("got %v, want %v", got, test.want)
				}
			}
		})
	}
}

func TestHasListener(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:4853 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1
   1: 0100007F:4854 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 2
`
	for port, want := range map[int]bool{0x4853: true, 0x4854: false, 0x9C40: false} {
		if got := hasListener(table, port); got != want {
			t.Errorf("port %#x: got %v, want %v", port, got, want)
		}
	}
}

func TestReceive(t *testing.T) {
	var progress strings.Builder
	report, err := receive(strings.NewReader("  round 1 of 1: a tool\n{\n \"version\": \"v\", \"rows\": [{\"what\": \"w\"}]\n}\n"), &progress)
	if err != nil || report.Version != "v" || len(report.Rows) != 1 || progress.String() != "  round 1 of 1: a tool\n" {
		t.Errorf("got %+v, %v, progress %q", report, err, progress.String())
	}
	for name, text := range map[string]string{"nothing": "", "no report": "  round 1\n", "half a line": "  rou", "half a report": "{\"version\""} {
		if _, err := receive(strings.NewReader(text), &progress); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestKernelDevice(t *testing.T) {
	sysfs := t.TempDir()
	dir := filepath.Join(sysfs, "class/infiniband/rxe_kernel/ports/1/gids")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for index, gid := range []string{"fe80:0000:0000:0000:5054:00ff:fe77:0002", "0000:0000:0000:0000:0000:ffff:0a4d:0002", "0000:0000:0000:0000:0000:0000:0000:0000"} {
		if err := os.WriteFile(filepath.Join(dir, string(rune('0'+index))), []byte(gid+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := findKernelDevice("rxe_kernel", sysfs)
	if err != nil || got.gid != 1 || got.ip.String() != "10.77.0.2" {
		t.Errorf("got %+v, %v, want index 1, 10.77.0.2", got, err)
	}
	for _, name := range []string{"", "rxe9"} {
		if got, err := findKernelDevice(name, sysfs); err == nil {
			t.Errorf("%q: got %+v, want an error", name, got)
		}
	}
}

func TestLibraries(t *testing.T) {
	const ldd = "\tlinux-vdso.so.1 (0x0)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x0)\n\t/lib64/ld-linux-x86-64.so.2 (0x0)\n\tliba.so => /opt/liba.so (0x0)\n"
	var got []string
	for _, path := range libraries(ldd) {
		got = append(got, merged(path))
	}
	const want = "usr/lib/x86_64-linux-gnu/libc.so.6 usr/lib64/ld-linux-x86-64.so.2 opt/liba.so"
	if strings.Join(got, " ") != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestParts(t *testing.T) {
	const want = "local memory cm sockets go copy veth overlay containers wait qos guest vms rxe allocations"
	if got := strings.Join(Parts(), " "); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, p := range new(Table).parts() {
		for _, row := range p.rows {
			if row.What == "" || row.Bound == 0 && !row.Unbounded && p.name != "allocations" {
				t.Errorf("%s: the row %+v says too little", p.name, row)
			}
		}
	}
}
