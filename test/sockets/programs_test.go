package sockets

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/harness"
)

// A program is one row of the table in docs/how-to/connections.md: a server and a client.
type program struct {
	name           string
	server, client string // shell commands with placeholders PORT, DIR and FILE
	bytes          uint64 // what the device must have carried
	file           bool   // the client or the server prints the file
	lasts          bool   // the server does not end with the client
	no             string // why it does not work
}

const fileSize = 8 << 20

var programs = []program{
	{name: "iperf3", server: "iperf3 -s -1 -p PORT", client: "iperf3 -c 127.0.0.1 -p PORT -n 64M", bytes: 64 << 20},
	{name: "iperf3 -R", server: "iperf3 -s -1 -p PORT", client: "iperf3 -c 127.0.0.1 -p PORT -n 64M -R", bytes: 64 << 20},
	{name: "iperf3 -P 4", server: "iperf3 -s -1 -p PORT", client: "iperf3 -c 127.0.0.1 -p PORT -n 64M -P 4", bytes: 64 << 20},
	{name: "sockperf ping-pong", server: "sockperf sr --tcp -i 127.0.0.1 -p PORT", client: "sockperf pp --tcp -i 127.0.0.1 -p PORT -m 64 -t 1", bytes: 64 * 100, lasts: true},
	{name: "NetPIPE (NPtcp)", server: "NPtcp -P PORT -o /dev/null -n 20 -u 65536", client: "NPtcp -P PORT -o /dev/null -n 20 -u 65536 -h 127.0.0.1", bytes: 1 << 20},
	{name: "nc (OpenBSD)", server: "nc.openbsd -l PORT", client: "nc.openbsd -N 127.0.0.1 PORT <FILE", bytes: fileSize, file: true},
	{name: "nc (traditional)", server: "nc.traditional -l -p PORT", client: "nc.traditional -q 0 127.0.0.1 PORT <FILE", bytes: fileSize, file: true},
	{name: "socat", server: "socat -u TCP-LISTEN:PORT -", client: "socat -u - TCP:127.0.0.1:PORT <FILE", bytes: fileSize, file: true},
	{name: "python3 http.server, curl", server: httpServer, client: "curl -sS http://127.0.0.1:PORT/file", bytes: fileSize, file: true, lasts: true},
	{name: "python3 http.server, wget", server: httpServer, client: "wget -q -O - http://127.0.0.1:PORT/file", bytes: fileSize, file: true, lasts: true},
	{name: "python3 http.server, urllib", server: httpServer, client: "/usr/bin/python3 -c 'import sys, urllib.request; sys.stdout.buffer.write(urllib.request.urlopen(\"http://127.0.0.1:PORT/file\").read())'", bytes: fileSize, file: true, lasts: true},
	{name: "nginx (one process), curl", server: "DIR/nginx -e DIR/nginx.log -c DIR/nginx.conf", client: "curl -sS http://127.0.0.1:PORT/file", bytes: fileSize, file: true, lasts: true},
	{name: "redis-server, redis-cli", server: redisServer, client: "redis-cli -p PORT -x set key <FILE && test \"$(redis-cli -p PORT strlen key)\" = 8388608", bytes: fileSize, lasts: true},
	{name: "redis-server, redis-benchmark", server: redisServer, client: "redis-benchmark -p PORT -c 50 -n 5000 -t set,get -q", bytes: 1 << 18, lasts: true},
	{name: "qperf tcp_bw", server: "qperf -lp PORT", client: "qperf -lp PORT -t 1 127.0.0.1 tcp_bw", bytes: 1 << 20, lasts: true, no: "its server forks for each client"},
}

const (
	httpServer  = "/usr/bin/python3 -m http.server -b 127.0.0.1 -d DIR PORT"
	redisServer = "DIR/redis-server --bind 127.0.0.1 --port PORT --save ''"
)

const nginxConf = `daemon off; master_process off; pid DIR/nginx.pid; error_log DIR/nginx.log;
events { worker_connections 64; }
http {
	access_log off; sendfile on;
	client_body_temp_path DIR/body; proxy_temp_path DIR/proxy; fastcgi_temp_path DIR/fastcgi; uwsgi_temp_path DIR/uwsgi; scgi_temp_path DIR/scgi;
	server { listen 127.0.0.1:PORT; location / { root DIR; } }
}
`

// outcome is what a cell of the table says.
type outcome string

const (
	overRDMA outcome = "RDMA"
	overTCP  outcome = "TCP"
	fails    outcome = "fails"
)

// run runs the pair over lib. The device's counters decide the outcome; note adds details of a failure.
func (p program) run(t *testing.T, d *harness.Daemon, lib library, limit time.Duration) (o outcome, note string) {
	t.Helper()
	dir := harness.Directory(t, nil)
	port := harness.FreePort(t)
	content := strings.Repeat("All human beings are born free and equal in dignity and rights.\n", fileSize/64)
	fill := strings.NewReplacer("PORT", fmt.Sprint(port), "DIR", dir, "FILE", filepath.Join(dir, "file"))
	for name, text := range map[string]string{"file": content, "nginx.conf": fill.Replace(nginxConf)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	lib.link(t, dir)
	before := d.Traffic(t)
	shell := func(command string) *harness.Process {
		return lib.launch(t, d, "sh", "-c", fill.Replace(command))
	}
	s := shell("exec " + p.server)
	defer func() {
		s.Signal(syscall.SIGKILL)
		s.Ended(limit)
	}()
	if !harness.Poll(limit, func() bool { return s.Ended(0) || harness.Listens(s, port) || d.Managed(t, port) }) || s.Ended(0) {
		return fails, "the server does not listen: " + s.Output()
	}
	c := shell(p.client)
	defer c.Signal(syscall.SIGKILL)
	if !c.Ended(limit) {
		return fails, fmt.Sprintf("the client hangs: %s\n%s\nserver:\n%s", c.Fate(), harness.Tail(c.Output(), 10), harness.Tail(s.Output(), 10))
	}
	if c.Code() != 0 {
		return fails, fmt.Sprintf("the client: %s\n%s\nserver:\n%s", c.Fate(), harness.Tail(c.Output(), 10), harness.Tail(s.Output(), 10))
	}
	if !p.lasts && (!s.Ended(limit) || s.Code() != 0) {
		return fails, fmt.Sprintf("the server: %s\n%s", s.Fate(), harness.Tail(s.Output(), 10))
	}
	if p.file && s.Stdout() != content && c.Stdout() != content {
		return fails, fmt.Sprintf("the file did not arrive: %d and %d bytes, want %d", len(s.Stdout()), len(c.Stdout()), len(content))
	}
	if moved := d.Traffic(t).Bytes - before.Bytes; moved < p.bytes {
		return overTCP, fmt.Sprintf("the device carried %d bytes, want %d", moved, p.bytes)
	}
	return overRDMA, ""
}

// Every program of the documentation's table has the outcome that the table gives, over both libraries. The long form
// also tries the stock libraries without ours and prints their table; it requires nothing of them, because they may
// hang.
func TestPrograms(t *testing.T) {
	harness.Need(t, "iperf3", "sockperf", "NPtcp", "nc.openbsd", "nc.traditional", "socat", "curl", "wget", "redis-check-rdb", "redis-cli", "redis-benchmark", "qperf", "/usr/bin/python3")
	documented := readTable(t)
	d := harness.Device(t)
	libs := libraries(t)
	if harness.All() {
		libs = []library{{name: libs[0].name + " alone", alone: true}, {name: libs[1].name + " alone", alone: true, root: libs[1].root}, libs[0], libs[1]}
	}
	table := map[string][]outcome{}
	for _, p := range programs {
		for _, lib := range libs {
			t.Run(p.name+"/"+lib.name, func(t *testing.T) {
				limit := minute
				if lib.alone || p.no != "" {
					limit = 15 * time.Second
				}
				o, note := p.run(t, d, lib, limit)
				table[p.name] = append(table[p.name], o)
				t.Logf("%s %s", o, note)
				want := overRDMA
				if p.no != "" {
					want = fails
				}
				if !lib.alone && o != want {
					t.Errorf("%s: %s, want %s: %s", lib.name, o, want, note)
				}
			})
		}
	}
	var text strings.Builder
	for _, p := range programs {
		fmt.Fprintf(&text, "| %s |", p.name)
		for _, o := range table[p.name] {
			fmt.Fprintf(&text, " %s |", o)
		}
		fmt.Fprintln(&text)
	}
	t.Logf("the table:\n%s", text.String())
	for _, p := range programs {
		cells := documented[p.name]
		if len(cells) != 4 {
			t.Errorf("docs/how-to/connections.md: no row for %q with four cells: %q", p.name, cells)
			continue
		}
		for i, o := range table[p.name] {
			if ours := 4 - len(table[p.name]) + i; ours >= 2 && cells[ours] != string(o) {
				t.Errorf("docs/how-to/connections.md says of %q: %s, and it is %s", p.name, cells[ours], o)
			}
		}
	}
}

// readTable is the documentation's table: the cells of each program.
func readTable(t *testing.T) map[string][]string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(harness.Root(), "docs", "how-to", "connections.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string][]string{}
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows[cells[0]] = cells[1:]
	}
	return rows
}
