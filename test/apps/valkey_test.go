package apps

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

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
		for _, c := range []struct{ what, args, by string }{
			{"SET of 3 B, 50 clients", "-t set -n 40000", "SET"},
			{"GET of 3 B, 50 clients, -P 16", "-t get -P 16 -n 200000", "GET"},
			{"SET of 16 KiB, 50 clients", "-t set -d 16384 -n 20000", "SET"},
			{"GET of 16 KiB, 50 clients", "-t get -d 16384 -n 20000", "GET"},
		} {
			run := func(rdma bool) func(t *testing.T) float64 {
				return func(t *testing.T) float64 {
					args := append(strings.Fields(c.args), "-c", "50", "--csv")
					return number(t, p.client.Run(t, minute, client(rdma, "benchmark", args...)...), `"`+c.by+`","([0-9.]+)"`)
				}
			}
			p.compare(t, Row{
				Program: "Valkey " + version, Started: "vrdma run -- valkey-server --rdma-port PORT; vrdma run -- valkey-benchmark --rdma",
				What: c.what, Unit: "/s", Checked: "values of up to 3 MiB that are set, then got",
			}, 20000, run(true), run(false))
		}
	})
}
