package test

import (
	"strconv"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

// perftest 4.5 has no option to check data; the C programs check contents. This file runs every test and mode of
// perftest to the end and requires every row of results.
type perfCase struct {
	name string
	tool string
	args string
	rows int // rows of results
}

func perfCases() []perfCase {
	const allRC, allUD = 23, 12 // sizes 2^1 … 2^23, and up to the MTU of 4096
	c := []perfCase{}
	add := func(name, tool, args string, rows int) {
		c = append(c, perfCase{name, tool, args, rows})
	}
	// Every operation, latency and bandwidth, with every transport that supports it. All sizes in one run (-a) take
	// seconds, because perftest measures the processor's clock for each size. The short form runs them with bandwidth
	// tests of RC and UD, where sizes matter most, and two sizes with the others.
	type sizes struct {
		name, args string
		rows       int
	}
	for _, what := range []string{"lat", "bw"} {
		allSizes := harness.Pick("-n 20 ", map[string]string{"lat": "-n 200 ", "bw": "-n 1000 "}[what]) + "-a"
		each := func(op, tr string) {
			all := sizes{"all", allSizes, allRC}
			if tr == "UD" {
				all.rows = allUD
			}
			few := []sizes{{"2", "-n 200 -s 2", 1}, {"8MiB", "-n 20 -s 8388608", 1}}
			if tr == "UD" {
				few[1] = sizes{"4096", "-n 200 -s 4096", 1}
			}
			if harness.All() || what == "bw" && tr != "UC" {
				few = []sizes{all}
			}
			for _, s := range few {
				add(op+"_"+what+"/"+tr+"/"+s.name, "ib_"+op+"_"+what, s.args+" -c "+tr, s.rows)
			}
		}
		for _, tr := range []string{"RC", "UC", "UD"} {
			each("send", tr)
			if tr != "UD" {
				each("write", tr)
			}
		}
		each("read", "RC")
		add("atomic_"+what+"/fetch_and_add", "ib_atomic_"+what, "-n 500 -A FETCH_AND_ADD", 1)
		add("atomic_"+what+"/compare_and_swap", "ib_atomic_"+what, "-n 500 -A CMP_AND_SWAP", 1)
	}
	// Modes.
	for _, op := range []string{"send", "write", "read", "atomic"} {
		size := " -s 65536"
		if op == "atomic" {
			size = ""
		}
		bw := "ib_" + op + "_bw"
		add(op+"_bw/bidirectional", bw, "-n 200 -b"+size, 1)
		add(op+"_bw/8qps", bw, "-n 100 -q 8"+size, 1)
		add(op+"_bw/bidirectional/4qps", bw, "-n 100 -b -q 4"+size, 1)
		add(op+"_bw/duration", bw, "-D 1 -f 0"+size, 1)
		add(op+"_bw/ipv6", bw, "-n 100 -x 1"+size, 1)
		if op != "write" {
			add(op+"_bw/events", bw, "-n 200 -e"+size, 1)
			add(op+"_lat/events", "ib_"+op+"_lat", "-n 200 -e", 1)
		}
		if op == "send" || op == "write" {
			add(op+"_bw/inline", bw, "-n 500 -I 64 -s 64", 1)
			add(op+"_lat/inline", "ib_"+op+"_lat", "-n 500 -I 64 -s 64", 1)
			add(op+"_lat/inline_max", "ib_"+op+"_lat", "-n 500 -I 220 -s 220", 1)
		}
		add(op+"_lat/duration", "ib_"+op+"_lat", "-D 1 -f 0", 1)
	}
	add("send_bw/postlist", "ib_send_bw", "-n 1024 -l 32 -s 1024", 1)
	add("write_bw/postlist", "ib_write_bw", "-n 1024 -l 32 -s 1024", 1)
	add("send_bw/srq", "ib_send_bw", "-n 200 --use-srq -q 4 -s 1024", 1)
	add("send_bw/UD/events", "ib_send_bw", "-n 200 -c UD -e -s 1024", 1)
	add("send_bw/UD/bidirectional", "ib_send_bw", "-n 200 -c UD -b -s 1024", 1)
	add("send_bw/UC/bidirectional", "ib_send_bw", "-n 200 -c UC -b -s 65536", 1)
	// perftest's group address is IPv6, and both ends must use the same family.
	add("send_bw/multicast", "ib_send_bw", "-n 200 -c UD -g -x 1 -s 1024", 1)
	add("send_lat/multicast", "ib_send_lat", "-n 200 -c UD -g -x 1 -s 1024", 1)
	add("write_bw/64MiB", "ib_write_bw", "-n 10 -s 67108864", 1)
	add("write_bw/old_post", "ib_write_bw", "-n 200 -s 65536 --use_old_post_send", 1)
	add("write_bw/mtu256", "ib_write_bw", "-n 200 -s 65536 -m 256", 1)
	add("write_bw/counters", "ib_write_bw", "-n 200 -s 65536 -W counters/port_xmit_data", 1)
	return c
}

func TestPerftest(t *testing.T) {
	harness.Need(t, "ib_send_bw", "ib_send_lat", "ib_write_bw", "ib_write_lat",
		"ib_read_bw", "ib_read_lat", "ib_atomic_bw", "ib_atomic_lat")
	d := harness.Device(t)
	for _, c := range perfCases() {
		t.Run(c.name, func(t *testing.T) {
			d.Carried(t, harness.Traffic{Packets: 100}, func() { perf(t, d, c) })
		})
	}
}

// perf runs one case.
func perf(t *testing.T, d *harness.Daemon, c perfCase) {
	t.Helper()
	port := harness.FreePort(t)
	server := append([]string{c.tool, "-F", "-p", strconv.Itoa(port)}, strings.Fields(c.args)...)
	client := append(append([]string{}, server...), "127.0.0.1")
	s, out := d.Pair(t, harness.Pick(5*minute, 10*minute), port, server, client)
	for who, text := range map[string]string{"server": s, "client": out} {
		for _, bad := range []string{"Completion with error", "Failed", "failed", "Couldn't", "Unable", "error"} {
			if strings.Contains(text, bad) {
				t.Errorf("%s says %q:\n%s", who, bad, text)
			}
		}
	}
	if err := workload.CheckRows(out, s, c.rows); err != nil {
		t.Errorf("%s %s: %v\n%s", c.tool, c.args, err, out)
	}
}
