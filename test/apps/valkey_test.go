package apps

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/harness"
)

// TestValkey: clients of Valkey set and get values over RDMA, and a value that one set is the value that another gets.
func TestValkey(t *testing.T) {
	if !recording() && !harness.All() {
		t.Skip("the long form: it builds Valkey")
	}
	bin := harness.Valkey(t)
	tool := func(name string) string { return filepath.Join(bin, "valkey-"+name) }
	version := version(t, tool("server"), "--version")
	places(t, func(t *testing.T, p place) {
		var ports [2]int // of TCP, of RDMA
		var servers [2]*harness.Process
		for i, option := range []string{"", "rdma-"} {
			ports[i] = harness.FreePort(t)
			argv := []string{tool("server"), "--save", "", "--protected-mode", "no", "--" + option + "port", fmt.Sprint(ports[i]), "--" + option + "bind", p.ip}
			if option == "" {
				argv = plain(argv...)
			} else {
				argv = append(argv, "--port", "0")
			}
			server := p.server.Launch(t, argv...)
			t.Cleanup(server.End)
			server.Printed(t, "Ready to accept connections", minute)
			servers[i] = server
		}
		client := func(rdma bool, name string, args ...string) []string {
			if !rdma {
				return plain(append([]string{tool(name), "-h", p.ip, "-p", fmt.Sprint(ports[0])}, args...)...)
			}
			return append([]string{tool(name), "--rdma", "-h", p.ip, "-p", fmt.Sprint(ports[1])}, args...)
		}
		// Longer than the buffer of a connection, so that it is announced anew.
		value := strings.Repeat("0123456789abcdef", 3<<16)
		for _, text := range []string{"short", value} {
			set := p.client.ProgramCommand(client(true, "cli", "-x", "SET", "key")...)
			set.Stdin = strings.NewReader(text)
			harness.Spawn(t, set).OK(t, minute)
			if out := strings.TrimRight(p.client.Run(t, minute, client(true, "cli", "GET", "key")...), "\n"); out != text {
				t.Errorf("GET returns %d bytes, and not the %d that were set", len(out), len(text))
			}
		}
		for _, c := range []struct {
			what, args, by string
			requests       int
		}{
			{"SET of 3 B, 50 clients", "-t set", "SET", 100000},
			{"GET of 3 B, 50 clients", "-t get", "GET", 100000},
			{"GET of 3 B, 50 clients, -P 16", "-t get -P 16", "GET", 1000000},
			{"SET of 16 KiB, 50 clients", "-t set -d 16384", "SET", 50000},
			{"GET of 16 KiB, 50 clients", "-t get -d 16384", "GET", 50000},
		} {
			run := func(rdma bool) func(t *testing.T) []float64 {
				return func(t *testing.T) []float64 {
					used := []*harness.Process{servers[0]}
					if rdma {
						used = []*harness.Process{servers[1], p.server.Process}
						if p.client != p.server {
							used = append(used, p.client.Process)
						}
					}
					before := cpuTime(t, used)
					args := append(strings.Fields(c.args), "-n", fmt.Sprint(c.requests), "-c", "50", "--csv")
					b := p.client.Launch(t, client(rdma, "benchmark", args...)...)
					rate := number(t, b.OK(t, 2*minute), `"`+c.by+`","([0-9.]+)"`)
					cost := cpuTime(t, append(used, b)) - before
					return []float64{rate, float64(cost.Microseconds()) / float64(c.requests)}
				}
			}
			row := Row{
				Program: "Valkey " + version, Started: "vrdma run -- valkey-server --rdma-port PORT; vrdma run -- valkey-benchmark --rdma",
				What: c.what, Unit: "/s", Checked: "values of up to 3 MiB that are set, then got",
			}
			cost := row
			cost.What, cost.Unit, cost.Lower = c.what+": processor time of all processes for a request, connecting included", "µs", true
			p.compareAll(t, []Row{row, cost}, 20000, run(true), run(false))
		}
	})
}

// cpuTime is the processor time that processes have used.
func cpuTime(t *testing.T, processes []*harness.Process) (sum time.Duration) {
	t.Helper()
	for _, p := range processes {
		sum += p.CPUTime(t)
	}
	return sum
}
