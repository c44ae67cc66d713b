package apps

import (
	"fmt"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// TestPairs measures UCX and libfabric. Other tests compare their data.
func TestPairs(t *testing.T) {
	if !recording() && !harness.All() {
		t.Skip("the long form")
	}
	harness.Need(t, "ucx_perftest", "fi_pingpong")
	ucxVersion, fabric := version(t, "ucx_info", "-v"), version(t, "fi_info", "--version")
	places(t, func(t *testing.T, p place) {
		for _, c := range []struct {
			what, args, unit, by string
			lower                bool
		}{
			{"one way, 8 B", "-t tag_lat -s 8 -n 5000", "µs", `(?m)^Final:\s+\S+\s+\S+\s+(\S+)`, true},
			{"one way, 8 B, asleep", "-t tag_lat -s 8 -n 2000 -E sleep", "µs", `(?m)^Final:\s+\S+\s+\S+\s+(\S+)`, true},
			{"bandwidth, 64 KiB", "-t tag_bw -s 65536 -n 2000", "MB/s", `(?m)^Final:\s+\S+\s+\S+\s+\S+\s+\S+\s+\S+\s+(\S+)`, false},
			{"bandwidth, 1 MiB", "-t tag_bw -s 1048576 -n 200", "MB/s", `(?m)^Final:\s+\S+\s+\S+\s+\S+\s+\S+\s+\S+\s+(\S+)`, false},
		} {
			run := func(tls string) func(t *testing.T) float64 {
				return func(t *testing.T) float64 {
					port, dev := harness.FreePort(t), p.device(tls)
					server := with([]string{"UCX_TLS=" + tls, "UCX_NET_DEVICES=" + dev, "UCX_LOG_LEVEL=warn"}, append([]string{"ucx_perftest", "-p", fmt.Sprint(port)}, strings.Fields(c.args)...)...)
					if strings.HasPrefix(tls, "tcp") {
						server = plain(server...)
					}
					return number(t, p.pair(t, port, server, append(server[:len(server):len(server)], p.ip)), c.by)
				}
			}
			p.compare(t, Row{Program: "UCX " + ucxVersion, Started: "vrdma run -- ucx_perftest, UCX_TLS=rc_v,self", What: c.what, Unit: c.unit, Lower: c.lower, Checked: "by Open MPI and MPICH above UCX"},
				200, run("rc_v,self"), run("tcp,self"))
		}
		for _, c := range []struct {
			what, args, unit, by string
			lower                bool
		}{
			{"one way, 64 B", "-S 64 -I 2000", "µs", `(?m)^64\s+\S+\s+\S+\s+\S+\s+\S+\s+\S+\s+(\S+)`, true},
			{"bandwidth, 1 MiB", "-S 1048576 -I 200", "MB/s", `(?m)^1m\s+\S+\s+\S+\s+\S+\s+\S+\s+(\S+)`, false},
		} {
			run := func(provider string) func(t *testing.T) float64 {
				return func(t *testing.T) float64 {
					port := harness.FreePort(t)
					tool := append([]string{"fi_pingpong", "-p", provider, "-e", "rdm", "-c"}, strings.Fields(c.args)...)
					if provider != "verbs;ofi_rxm" {
						tool = plain(tool...)
					}
					server := append(tool[:len(tool):len(tool)], "-B", fmt.Sprint(port))
					return number(t, p.pair(t, port, server, append(tool[:len(tool):len(tool)], "-P", fmt.Sprint(port), p.ip)), c.by)
				}
			}
			p.compare(t, Row{Program: "libfabric " + fabric, Started: "vrdma run -- fi_pingpong -p 'verbs;ofi_rxm' -e rdm", What: c.what, Unit: c.unit, Lower: c.lower, Checked: "fi_pingpong -c"},
				200, run("verbs;ofi_rxm"), run("tcp;ofi_rxm"))
		}
	})
}
