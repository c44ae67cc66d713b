package drivers

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// captured returns the captured output of a tool; testdata/README.md says how it was made.
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
		{"sockperf on a busy machine", text("sockperf-busy.txt"), sockperf, nil, "too busy"},
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

func TestParsePingpong(t *testing.T) {
	got, err := ParsePingpong(captured(t, "rc_pingpong.txt"))
	if err != nil || !near(got, 302.55e-6) {
		t.Errorf("got %v, %v", got, err)
	}
	for name, text := range map[string]string{
		"nothing":     "",
		"it gave up":  "Failed status transport retry counter exceeded (12) for wr_id 2\n",
		"no number":   "1000 iters in 0.27 seconds = many usec/iter\n",
		"cut off":     "1000 iters in 0.27 seconds\n",
		"other units": "1000 iters in 0.27 seconds = 271.93 Mbit/sec\n",
	} {
		if got, err := ParsePingpong(text); err == nil || !strings.Contains(err.Error(), "usec/iter") {
			t.Errorf("%s: got %v, %v, want an error", name, got, err)
		}
	}
}
