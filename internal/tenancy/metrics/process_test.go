package metrics

import (
	"regexp"
	"strings"
	"testing"
)

// TestProcess: the page has the process metrics of every Prometheus client, and quotas with and without a limit.
func TestProcess(t *testing.T) {
	page := string(serve(t, world(1)).Page())
	for _, want := range []string{
		`(?m)^process_open_fds [1-9]`, `(?m)^process_max_fds [1-9]`, `(?m)^process_resident_memory_bytes [1-9]`, `(?m)^process_virtual_memory_bytes [1-9]`,
		`(?m)^process_threads [1-9]`, `(?m)^process_cpu_seconds_total `, `(?m)^process_start_time_seconds `, `vrdma_build_info\{.*goversion="go1`,
		`vrdma_quota_used\{tenant="red",kind="memory"\} 40`, `vrdma_quota_limit\{tenant="red",kind="memory"\} 100`, `vrdma_hosts\{state="gone"\} 1`,
	} {
		if !regexp.MustCompile(want).MatchString(page) {
			t.Errorf("no %s", want)
		}
	}
	if strings.Contains(page, `vrdma_quota_limit{tenant="red",kind="devices"}`) {
		t.Error("a kind without limit has a limit")
	}
}

func FuzzStatus(f *testing.F) {
	f.Add([]byte("Name:\tx\nVmRSS:\t  12 kB\nThreads:\t3\n"))
	f.Fuzz(func(t *testing.T, text []byte) { parseStatus(text) })
}
