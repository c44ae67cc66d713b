package metrics

import (
	"bytes"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A Quota is what a tenant holds of a kind, and its limit; 0: none.
type Quota struct {
	Tenant, Kind string
	Used, Limit  uint64
}

// quotas writes the use of quotas. A kind without a limit has no series for the limit.
func (p *page) quotas(list []Quota) {
	p.family("vrdma_quota_used", "gauge", "What a tenant holds of a kind that its quota can limit: a number, or bytes of memory and rings.")
	for _, q := range list {
		p.sample(float64(q.Used), "tenant", q.Tenant, "kind", q.Kind)
	}
	p.family("vrdma_quota_limit", "gauge", "The most that a tenant may hold of a kind; without a limit there is no series.")
	for _, q := range list {
		if q.Limit > 0 {
			p.sample(float64(q.Limit), "tenant", q.Tenant, "kind", q.Kind)
		}
	}
}

// hosts writes the number of hosts by state.
func (p *page) hosts(states map[string]int, order []string) {
	p.family("vrdma_hosts", "gauge", "Hosts of a shared store by state; gone: without a heartbeat.")
	for _, s := range order {
		p.sample(float64(states[s]), "state", s)
	}
}

// build writes the version of the program.
func (p *page) build(version string) {
	p.family("vrdma_build_info", "gauge", "Version of the daemon; always 1.")
	revision := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				revision = s.Value
			}
		}
	}
	p.sample(1, "version", version, "revision", revision, "goversion", runtime.Version())
}

// process writes what the kernel knows of this process, with the names of Prometheus' client libraries.
func (p *page) process() {
	gauge := func(name, help string, value float64) {
		p.family(name, "gauge", help)
		p.sample(value)
	}
	if dir, err := os.Open("/proc/self/fd"); err == nil {
		names, _ := dir.Readdirnames(-1)
		dir.Close()
		gauge("process_open_fds", "Open descriptors of the daemon.", float64(max(len(names)-1, 0))) // without dir's own
	}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		gauge("process_max_fds", "The most descriptors that the daemon may open.", float64(limit.Cur))
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return
	}
	s := parseStatus(status)
	gauge("process_resident_memory_bytes", "Resident memory of the daemon. Shared memory of programs counts where the daemon has touched it.", float64(s.resident))
	gauge("process_virtual_memory_bytes", "Address space of the daemon.", float64(s.virtual))
	gauge("process_threads", "Threads of the daemon.", float64(s.threads))
	gauge("go_goroutines", "Goroutines of the daemon.", float64(runtime.NumGoroutine()))
}

// processStatus is part of /proc/PID/status.
type processStatus struct{ resident, virtual, threads uint64 }

// parseStatus reads /proc/PID/status. What is missing is 0.
func parseStatus(text []byte) (s processStatus) {
	for line := range bytes.Lines(text) {
		name, rest, _ := strings.Cut(string(line), ":")
		fields := strings.Fields(rest)
		if len(fields) == 0 {
			continue
		}
		n, err := strconv.ParseUint(fields[0], 10, 53)
		if err != nil {
			continue
		}
		switch name {
		case "VmRSS":
			s.resident = n << 10
		case "VmSize":
			s.virtual = n << 10
		case "Threads":
			s.threads = n
		}
	}
	return s
}
