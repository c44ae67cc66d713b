package apps

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/cable"
	"vrdma.dev/vrdma/test/harness"
)

const minute = time.Minute

func TestMain(m *testing.M) { harness.Main(m) }

// A place is where a program's two sides run.
type place struct {
	name           string
	server, client *harness.Daemon
	ip, peer       string // of the server, and of the client
}

// recording reports whether rows are written.
func recording() bool { return os.Getenv("VRDMA_PROGRAMS") != "" }

// places runs f on one host, and between two hosts in the long form and for the page.
func places(t *testing.T, f func(t *testing.T, p place)) {
	t.Run("one host", func(t *testing.T) {
		d := harness.Start(t, harness.Options{})
		f(t, place{"one host", d, d, "127.0.0.1", "127.0.0.1"})
	})
	if !harness.All() && !recording() {
		return
	}
	t.Run("two hosts", func(t *testing.T) {
		harness.Need(t, "nsenter", "ip")
		a, b := cable.NewNamespace(t), cable.NewNamespace(t)
		cable.Veth(t, a, b, "eth0", 1500)
		a.Address(t, "eth0", "10.97.0.1/24")
		b.Address(t, "eth0", "10.97.0.2/24")
		f(t, place{
			"two hosts",
			harness.Start(t, harness.Options{Addr: "10.97.0.1", Network: a.Path()}),
			harness.Start(t, harness.Options{Addr: "10.97.0.2", Network: b.Path()}),
			"10.97.0.1", "10.97.0.2",
		})
	})
}

// sent is what the devices of the place have sent.
func (p place) sent(t *testing.T) harness.Traffic {
	t.Helper()
	sum := p.server.Traffic(t)
	if p.client != p.server {
		more := p.client.Traffic(t)
		sum.Bytes, sum.Packets = sum.Bytes+more.Bytes, sum.Packets+more.Packets
	}
	return sum
}

// compare runs a program in both modes, in turn, and records the row. In each round of RDMA the devices send at least so many packets.
func (p place) compare(t *testing.T, row Row, least uint64, rdma, tcp func(t *testing.T) float64) {
	t.Helper()
	one := func(f func(t *testing.T) float64) func(t *testing.T) []float64 {
		return func(t *testing.T) []float64 { return []float64{f(t)} }
	}
	p.compareAll(t, []Row{row}, least, one(rdma), one(tcp))
}

// compareAll is compare for a program that measures several rows in one run.
func (p place) compareAll(t *testing.T, rows []Row, least uint64, rdma, tcp func(t *testing.T) []float64) {
	t.Helper()
	rounds := 1
	if recording() {
		rounds = 3
	}
	for range rounds {
		for i, v := range tcp(t) {
			rows[i].TCP = append(rows[i].TCP, v)
		}
		before := p.sent(t)
		for i, v := range rdma(t) {
			rows[i].RDMA = append(rows[i].RDMA, v)
		}
		after := p.sent(t)
		packets := after.Packets - before.Packets
		if packets < least {
			t.Errorf("%s: the devices sent %d packets, want %d: the data went another way", rows[0].Program, packets, least)
		}
		for i := range rows {
			rows[i].Packets += packets
			rows[i].Bytes += after.Bytes - before.Bytes
		}
	}
	if t.Failed() {
		return
	}
	for _, row := range rows {
		row.Place = p.name
		t.Logf("%s, %s, %s: RDMA %.4g, TCP %.4g %s: %.2f times; %d packets", row.Program, row.Place, row.What, row.Median(row.RDMA), row.Median(row.TCP), row.Unit, row.Ratio(), row.Packets)
		record(t, row)
	}
}

// record appends a row to the file of VRDMA_PROGRAMS.
func record(t *testing.T, row Row) {
	t.Helper()
	if !recording() {
		return
	}
	row.Processors = runtime.NumCPU()
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		t.Fatal(err)
	}
	row.Load, _, _ = strings.Cut(string(load), " ")
	row.Kernel = strings.TrimSpace(string(release))
	build, err := exec.Command(harness.Binary(), "version").Output()
	if err != nil {
		t.Fatal(err)
	}
	if words := strings.Fields(string(build)); len(words) > 1 {
		row.Build = words[1]
	}
	text, err := json.Marshal(row)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(filepath.Join(harness.Root(), os.Getenv("VRDMA_PROGRAMS")), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.Write(append(text, '\n')); err != nil {
		t.Fatal(err)
	}
}

// plain is a command line without the device.
func plain(argv ...string) []string {
	return append([]string{"env", "-u", "LD_PRELOAD", "-u", "VRDMA_SOCKET"}, argv...)
}

// with is a command line with variables.
func with(variables []string, argv ...string) []string {
	return append(append([]string{"env"}, variables...), argv...)
}

// pair runs a server and its client once, and returns the client's output.
func (p place) pair(t *testing.T, port int, server, client []string) string {
	t.Helper()
	_, out := harness.Converse(t, port, p.server, server, p.client, client).OK(t, minute)
	return out
}

// number returns the group of a pattern in a program's output.
func number(t *testing.T, out, pattern string) float64 {
	t.Helper()
	found := regexp.MustCompile(pattern).FindAllStringSubmatch(out, -1)
	if len(found) == 0 {
		t.Fatalf("no %s in:\n%s", pattern, out)
	}
	value, err := strconv.ParseFloat(found[len(found)-1][1], 64)
	if err != nil || value <= 0 {
		t.Fatalf("%s is %v (%v) in:\n%s", pattern, value, err, out)
	}
	return value
}

// version returns the first version number that a command prints.
func version(t *testing.T, argv ...string) string {
	t.Helper()
	out, _ := exec.Command(argv[0], argv[1:]...).CombinedOutput() // some exit with an error
	found := regexp.MustCompile(`[0-9]+\.[0-9]+(\.[0-9]+)?`).FindString(string(out))
	if found == "" {
		t.Fatalf("%q prints no version:\n%s", argv, out)
	}
	return found
}

// libraries is LD_LIBRARY_PATH for unpacked packages.
func libraries(t *testing.T, packages ...string) string {
	t.Helper()
	var dirs []string
	for _, name := range packages {
		found, err := filepath.Glob(filepath.Join(harness.Unpacked(t, name), "usr/lib/*-linux-gnu"))
		if err != nil || len(found) == 0 {
			t.Fatalf("package %s has no libraries", name)
		}
		dirs = append(dirs, found[0])
	}
	return "LD_LIBRARY_PATH=" + strings.Join(dirs, ":")
}

// packageVersion returns the version of a Debian package without Debian's part.
func packageVersion(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.Command("apt-cache", "show", "--no-all-versions", name).Output()
	if err != nil {
		t.Fatalf("apt-cache show %s: %v", name, err)
	}
	found := regexp.MustCompile(`(?m)^Version: (?:[0-9]+:)?([^-\n]+)`).FindSubmatch(out)
	if found == nil {
		t.Fatalf("apt-cache show %s has no version:\n%s", name, out)
	}
	return string(found[1])
}
