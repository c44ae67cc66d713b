package apps

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// fabtests are tests of libfabric's own suite, by provider: a server and a client, which compare data where they have -v. The suite's
// runner is not used, because it kills every process of the machine whose name begins with fi_.
var fabtests = []struct {
	provider string
	tests    []string
}{
	{"verbs", []string{
		"fi_msg", "fi_msg_epoll", "fi_cm_data",
		"fi_cq_data -e msg -o senddata", "fi_cq_data -e msg -o writedata",
		"fi_shared_ctx -e msg --no-tx-shared-ctx",
		"fi_flood -e msg -v -T 1",
		"fi_msg_pingpong -I 20 -v", "fi_msg_bw -I 20",
		"fi_rma_bw -e msg -o write -I 20", "fi_rma_bw -e msg -o read -I 20", "fi_rma_bw -e msg -o writedata -I 20",
		"fi_rma_pingpong -e msg -o write -I 20",
	}},
	{"verbs;ofi_rxm", []string{
		"fi_rdm", "fi_rdm -U", "fi_av_xfer -e rdm",
		"fi_cq_data -e rdm -o senddata", "fi_cq_data -e rdm -o writedata",
		"fi_rdm_tagged_peek", "fi_inject_test -A inject -v",
		"fi_recv_cancel -e rdm -V", "fi_unexpected_msg -e rdm -I 10 -v", "fi_multi_recv -e rdm -I 5",
		"fi_flood -e rdm -v -T 1",
		"fi_rdm_cntr_pingpong -I 20", "fi_rdm_pingpong -I 20 -v", "fi_rdm_tagged_pingpong -I 20 -v",
		"fi_rma_bw -e rdm -o write -I 20", "fi_rma_bw -e rdm -o read -I 20",
	}},
}

// TestFabtests: libfabric's own tests pass over its verbs provider, and over its reliable datagrams above that.
func TestFabtests(t *testing.T) {
	if !recording() && !harness.All() {
		t.Skip("the long form: it builds libfabric")
	}
	dir := harness.Fabtests(t)
	libs := "LD_LIBRARY_PATH=" + filepath.Join(dir, "lib")
	version := version(t, "env", libs, filepath.Join(dir, "bin", "fi_info"), "--version")
	places(t, func(t *testing.T, p place) {
		if p.server == p.client {
			return // the verbs provider does not use loopback addresses
		}
		run := func(t *testing.T, provider, line string) string {
			words, port := strings.Fields(line), harness.FreePort(t)
			argv := with([]string{libs}, append([]string{filepath.Join(dir, "bin", words[0]), "-p", provider}, words[1:]...)...)
			if provider == "tcp" {
				argv = plain(argv...)
			}
			client := append(argv[:len(argv):len(argv)], "-s", p.peer)
			server := append(argv[:len(argv):len(argv)], "-s", p.ip)
			if provider != "verbs" { // by a control connection, which the tests of datagrams can use
				control := fmt.Sprintf("-b=%d", port)
				_, out := harness.Converse(t, port, p.server, append(server, control), p.client, append(client, control, p.ip)).OK(t, 3*minute)
				return out
			}
			c := harness.Conversation{Server: p.server.Launch(t, append(server, "-B", fmt.Sprint(port))...)}
			p.server.AwaitManaged(t, c.Server, port)
			c.Client = p.client.Launch(t, append(client, "-P", fmt.Sprint(port), p.ip)...)
			_, out := c.OK(t, 3*minute)
			return out
		}
		for _, suite := range fabtests {
			for _, line := range suite.tests {
				t.Run(suite.provider+" "+line, func(t *testing.T) {
					least := harness.Traffic{Packets: 1}
					if line == "fi_cm_data" {
						least.Packets = 0 // it only connects, and the device counts no messages of the connection manager
					}
					p.client.Carried(t, least, func() { run(t, suite.provider, line) })
				})
			}
		}
		for _, c := range []struct {
			what, line, size, unit, column string
			lower                          bool
		}{
			{"tagged, one way, 64 B", "fi_rdm_tagged_pingpong -I 3000 -S 64", "64", "µs", `\S+\s+\S+\s+\S+\s+\S+\s+(\S+)`, true},
			{"RMA writes, 64 KiB", "fi_rma_bw -e rdm -o write -I 3000 -S 65536", "64k", "MB/s", `\S+\s+\S+\s+\S+\s+(\S+)`, false},
		} {
			measure := func(provider string) func(t *testing.T) float64 {
				return func(t *testing.T) float64 {
					return number(t, run(t, provider, c.line), `(?m)^`+c.size+`\s+`+c.column)
				}
			}
			p.compare(t, Row{
				Program: "fabtests " + version, Started: "vrdma run -- PROGRAM -p 'verbs;ofi_rxm'", What: c.what, Unit: c.unit, Lower: c.lower,
				Checked: "the suite's tests with -v",
			}, 200, measure("verbs;ofi_rxm"), measure("tcp"))
		}
	})
}
