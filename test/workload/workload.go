// Package workload is what tests run between two hosts: rdma-core's examples, perftest, and
// test/testdata/exchange.c, which checks every byte. Each is a server and a client, with the
// flags that tell both which address to use and with what must be in their output.
//
//	Pingpong("rc", …)  ┐                                     ┌─ server at one Host
//	Perf("write_bw", …)├─▶ Workload ── Run(t, at, from) ──▶ ─┤
//	Exchange("rc", …)  ┘                                     └─ client at another
//
// A Host is any harness.Machine: beside a vrdma daemon, or in a guest with the kernel's rxe.
// Who uses it: the tests in and below vrdma.dev/vrdma/test.
package workload

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/harness"
)

// Host is a place to run one side.
type Host struct {
	harness.Machine
	IP  string // where its servers are reached
	GID int    // which of its device's addresses to use
}

// Workload is a server and its client.
type Workload struct {
	Name string
	argv []string
	port string                       // flag
	gid  string                       // flag
	must func(out, peer string) error // peer is what the other side printed
	// row: the client prints at least one row of results.
	row bool
}

// Start starts both sides.
func (w Workload) Start(t testing.TB, at, from Host) *harness.Conversation {
	t.Helper()
	port := harness.FreePort(t)
	side := func(h Host) []string {
		argv := append(append([]string{}, w.argv...), w.gid, strconv.Itoa(h.GID))
		if w.port != "" {
			argv = append(argv, w.port)
		}
		return append(argv, strconv.Itoa(port))
	}
	return harness.Converse(t, port, at, side(at), from, append(side(from), at.IP))
}

// Run runs both sides to the end, which must be a good one, and looks at what they printed.
func (w Workload) Run(t testing.TB, at, from Host, limit time.Duration) {
	t.Helper()
	if err := w.Try(t, at, from, limit); err != nil {
		t.Fatal(err)
	}
}

// Try is Run for those who can live with a failure.
func (w Workload) Try(t testing.TB, at, from Host, limit time.Duration) error {
	t.Helper()
	return w.Check(w.Start(t, at, from), limit)
}

// Check waits for both sides of what Start has started, and looks at what they printed.
func (w Workload) Check(c *harness.Conversation, limit time.Duration) error {
	server, client, err := c.Result(limit)
	if err != nil {
		return err
	}
	for _, err := range []error{w.must(server, client), w.must(client, server)} {
		if err != nil {
			return fmt.Errorf("%w\n%v", err, c)
		}
	}
	if w.row && len(Rows(client)) == 0 {
		return fmt.Errorf("no row of results\n%v", c)
	}
	return nil
}

var iterations = regexp.MustCompile(`(?m)^(\d+) iters in `)

// Pingpong is one of rdma-core's examples, whose both sides check what arrives.
func Pingpong(kind string, size, iters int, args string) Workload {
	argv := []string{"ibv_" + kind + "_pingpong", "-s", strconv.Itoa(size), "-n", strconv.Itoa(iters), "-r", "100", "-c"}
	return Workload{
		Name: fmt.Sprintf("pingpong/%s/%d%s", kind, size, suffix(args)),
		argv: append(argv, strings.Fields(args)...), port: "-p", gid: "-g",
		must: func(out, _ string) error {
			m := iterations.FindStringSubmatch(out)
			if m == nil {
				return fmt.Errorf("no result, want %d iterations", iters)
			}
			if n, _ := strconv.Atoi(m[1]); n < iters {
				return fmt.Errorf("%s iterations, want %d", m[1], iters)
			}
			if strings.Contains(out, "invalid data") {
				return fmt.Errorf("invalid data")
			}
			return nil
		},
	}
}

// Perf is one of perftest's tools, "write_bw" for example.
func Perf(tool, args string) Workload {
	return Workload{
		Name: tool + suffix(args),
		argv: append([]string{"ib_" + tool, "-F"}, strings.Fields(args)...), port: "-p", gid: "-x",
		must: func(out, peer string) error {
			for _, bad := range []string{"Completion with error", "Failed", "failed", "Couldn't", "Unable", "error"} {
				if strings.Contains(out, bad) {
					return fmt.Errorf("it says %q", bad)
				}
			}
			return CheckRows(out, peer, -1)
		},
		row: true,
	}
}

var exchanged = regexp.MustCompile(`exchanged (\d+) messages \((\d+) missing\)`)

// Exchange is the program that works on the other side's memory and checks every byte. The
// hosts must have it: see Program.
func Exchange(t testing.TB, kind, args string) Workload {
	t.Helper()
	argv := append([]string{Program(t), "-t", kind}, strings.Fields(args)...)
	return Workload{
		Name: "exchange/" + kind + suffix(args),
		argv: argv, gid: "-g",
		must: func(out, _ string) error {
			m := exchanged.FindStringSubmatch(out)
			if m == nil {
				return fmt.Errorf("no result")
			}
			if m[1] == m[2] {
				return fmt.Errorf("not one message arrived")
			}
			return nil
		},
	}
}

// Program is the compiled exchange program.
func Program(t testing.TB) string {
	t.Helper()
	return harness.Compile(t, "exchange")
}

// suffix makes arguments part of a name.
func suffix(args string) string {
	if args == "" {
		return ""
	}
	return "/" + strings.ReplaceAll(strings.Join(strings.Fields(args), ""), "/", "_")
}
