package test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/test/harness"
)

// Metrics, bills and the device's own counters equal the bytes that a program says it sent. promtool and Prometheus
// accept the page. A killed daemon loses nothing that was flushed.
func TestMetering(t *testing.T) {
	harness.Need(t, "ib_write_bw", "ibv_devinfo")
	prometheus := filepath.Join(harness.Unpacked(t, "prometheus"), "usr/bin")
	book := filepath.Join(harness.Directory(t, nil), "usage")
	port := harness.FreePort(t)
	metrics := fmt.Sprintf("127.0.0.1:%d", port)
	d := harness.Start(t, harness.Options{Args: []string{"--usage", book, "--metrics", metrics, "--metrics-per-nic"}})

	const iterations, size = 1000, 65536
	write := func() {
		p := harness.FreePort(t)
		argv := []string{"ib_write_bw", "-F", "-p", strconv.Itoa(p), "-n", strconv.Itoa(iterations), "-s", strconv.Itoa(size)}
		d.Pair(t, minute, p, argv, append(argv, "127.0.0.1"))
	}
	write()
	page := get(t, "http://"+metrics+"/metrics")
	const sent = uint64(iterations * size)
	labels := `{tenant="default",network="host",nic="default"}`
	for _, name := range []string{
		"vrdma_transmit_bytes_total" + labels, "vrdma_receive_bytes_total" + labels,
		`node_infiniband_port_data_transmitted_bytes_total{device="rxe0",port="1"}`,
	} {
		if got := sample(t, page, name); got != float64(sent) {
			t.Errorf("%s is %.0f, the program sent %d", name, got, sent)
		}
	}
	if got := sample(t, page, `vrdma_messages_total{tenant="default",network="host",nic="default",direction="out",op="write"}`); got != iterations {
		t.Errorf("%v writes counted of %d", got, iterations)
	}
	if got := d.Traffic(t).Bytes; got != sent {
		t.Errorf("the device tree shows %d bytes, the program sent %d", got, sent)
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if got := get(t, "http://"+metrics+path); got != "ok\n" {
			t.Errorf("%s: %q", path, got)
		}
	}

	check := exec.Command(filepath.Join(prometheus, "promtool"), "check", "metrics")
	check.Stdin = strings.NewReader(page)
	if out, err := check.CombinedOutput(); err != nil || len(bytes.TrimSpace(out)) > 0 {
		t.Errorf("promtool: %v\n%s", err, out)
	}
	scraped(t, prometheus, metrics, labels, sent)

	// Usage before the last flushed change survives SIGKILL.
	before := time.Now()
	d.Run(t, minute, "ibv_devinfo")
	if !harness.Poll(minute, func() bool {
		info, err := os.Stat(book)
		return err == nil && info.ModTime().After(before)
	}) {
		t.Fatal("nothing was flushed")
	}
	d.Process.Signal(syscall.SIGKILL)
	d.Process.Wait(t, minute)
	d = harness.Start(t, harness.Options{Args: []string{"--usage", book}})
	billed(t, d, sent)
	write()
	billed(t, d, 2*sent)
	if got := d.Traffic(t).Bytes; got != sent {
		t.Errorf("the device tree of the second daemon shows %d bytes, the program sent %d", got, sent)
	}

	var top struct {
		NICs []struct {
			Tenant, NIC string
			Used        map[string]uint64
		}
	}
	ask(t, d, &top, "top", "--once", "--every", "100ms", "-o", "json")
	if len(top.NICs) != 1 || top.NICs[0].Tenant != "default" || top.NICs[0].Used["transmit_bytes"] != 2*sent {
		t.Errorf("vrdma top: %+v", top)
	}
}

// billed checks the usage of the default NIC.
func billed(t *testing.T, d *harness.Daemon, sent uint64) {
	t.Helper()
	var u protocol.UsageReport
	ask(t, d, &u, "usage", "-o", "json")
	if len(u.Records) != 1 || u.Records[0].NIC != "default" {
		t.Fatalf("vrdma usage: %+v", u.Records)
	}
	used := u.Records[0].Used
	if used["transmit_bytes"] != sent || used["receive_bytes"] != sent {
		t.Errorf("vrdma usage says %d bytes out and %d in, the program sent %d", used["transmit_bytes"], used["receive_bytes"], sent)
	}
	if used["loop_ns"] == 0 || used["connections"] == 0 {
		t.Errorf("no time and no connections: %v", used)
	}
}

// ask runs a command of ours and reads its JSON.
func ask(t *testing.T, d *harness.Daemon, answer any, args ...string) {
	t.Helper()
	cmd := d.Command(args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %v\n%s", args, err, errs.String())
	}
	if err := json.Unmarshal(out.Bytes(), answer); err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out.String())
	}
}

// scraped runs Prometheus on the page and queries it.
func scraped(t *testing.T, bin, target, labels string, want uint64) {
	t.Helper()
	dir := harness.Directory(t, nil)
	config := filepath.Join(dir, "prometheus.yml")
	text := fmt.Sprintf("scrape_configs:\n- job_name: vrdma\n  scrape_interval: 200ms\n  scrape_timeout: 200ms\n  static_configs:\n  - targets: [%q]\n", target)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	listen := fmt.Sprintf("127.0.0.1:%d", harness.FreePort(t))
	p := harness.Spawn(t, exec.Command(filepath.Join(bin, "prometheus"), "--config.file", config, "--storage.tsdb.path", filepath.Join(dir, "data"),
		"--web.listen-address", listen))
	defer p.End()
	last := ""
	ok := harness.Poll(minute, func() bool {
		if p.Ended(0) {
			return true
		}
		r, err := http.Get("http://" + listen + "/api/v1/query?query=" + url.QueryEscape("vrdma_transmit_bytes_total"+labels))
		if err != nil {
			return false
		}
		defer r.Body.Close()
		body, _ := io.ReadAll(r.Body)
		last = string(body)
		return strings.Contains(last, fmt.Sprintf("%q", strconv.FormatUint(want, 10)))
	})
	if !ok || p.Ended(0) {
		t.Errorf("Prometheus does not have %d: %s\n%s", want, last, harness.Tail(p.Output(), 20))
	}
}

func get(t *testing.T, from string) string {
	t.Helper()
	r, err := http.Get(from)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v\n%s", from, r.Status, err, body)
	}
	return string(body)
}

// sample finds a sample on a page.
func sample(t *testing.T, page, name string) float64 {
	t.Helper()
	for _, l := range strings.Split(page, "\n") {
		if rest, ok := strings.CutPrefix(l, name+" "); ok {
			v, err := strconv.ParseFloat(rest, 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatalf("the page has no %s\n%s", name, page)
	return 0
}

// Each tenant is billed for the bytes that its programs sent, also after the NIC is gone and the daemon has restarted.
// A NIC that reaches its cap causes an event. The listener of a NIC shows that NIC only.
func TestMeteringOfTenants(t *testing.T) {
	harness.Need(t, "ib_write_bw")
	dir := harness.Directory(t, nil)
	store := filepath.Join(dir, "objects.db")
	metrics := fmt.Sprintf("127.0.0.1:%d", harness.FreePort(t))
	args := []string{"--store", store, "--metrics", metrics}
	d := harness.Start(t, harness.Options{Args: args})
	ours(t, d, "apply", "-f", "../examples/two-tenants.yaml")
	const size = 4096
	writeTo := func(to, from string, n int) {
		p := harness.FreePort(t)
		argv := []string{"ib_write_bw", "-F", "-x", "0", "-p", strconv.Itoa(p), "-n", strconv.Itoa(n), "-s", strconv.Itoa(size)}
		server := d.LaunchWith(t, []string{"--nic", to}, argv...)
		harness.Listening(t, server, p, minute)
		d.LaunchWith(t, []string{"--nic", from}, append(argv, "127.0.0.1")...).OK(t, minute)
		server.OK(t, minute)
	}
	write := func(tenant string, n int) { writeTo(tenant+"/db", tenant+"/web", n) }
	write("red", 200)
	writeTo("red/web", "red/slow", 500) // far more than its burst
	write("blue", 300)
	bill := map[string]uint64{"red": 700 * size, "blue": 300 * size}
	check := func(when string) {
		t.Helper()
		page := get(t, "http://"+metrics+"/metrics")
		for tenant, want := range bill {
			var u protocol.UsageReport
			ask(t, d, &u, "usage", "--tenant", tenant, "-o", "json")
			var out, in uint64
			for _, r := range u.Records {
				if r.Tenant != tenant {
					t.Errorf("%s: the bill of %s has %s/%s", when, tenant, r.Tenant, r.NIC)
				}
				out += r.Used["transmit_bytes"]
				in += r.Used["receive_bytes"]
			}
			if out != want || in != want {
				t.Errorf("%s: the bill of %s says %d bytes out and %d in, its programs sent %d", when, tenant, out, in, want)
			}
			if got := sample(t, page, fmt.Sprintf(`vrdma_transmit_bytes_total{tenant=%q,network="train"}`, tenant)); got != float64(want) {
				t.Errorf("%s: metrics say %.0f bytes of %s, its programs sent %d", when, got, tenant, want)
			}
		}
	}
	check("after they ran")
	if page := get(t, "http://"+metrics+"/metrics"); sample(t, page, `node_infiniband_port_data_transmitted_bytes_total{device="rxe0",port="1"}`) != 1000*size {
		t.Errorf("the device and its NICs do not agree\n%s", page)
	}
	if !harness.Poll(minute, func() bool { return regexp.MustCompile(`capped .*red/slow`).MatchString(ours(t, d, "events", "red")) }) {
		t.Errorf("a NIC that met its cap is no event:\n%s", ours(t, d, "events"))
	}
	if page := get(t, "http://"+metrics+"/metrics"); sample(t, page, `vrdma_throttled_seconds_total{tenant="red",network="train",direction="out"}`) == 0 {
		t.Errorf("it met its cap, and no time is counted\n%s", page)
	}
	ours(t, d, "delete", "nic", "red/web")
	check("after a NIC was deleted")
	status := ours(t, d, "status")
	for _, want := range []string{"red", "db", "train", "10.1.0.2"} {
		if !strings.Contains(status, want) {
			t.Errorf("the status has no %q:\n%s", want, status)
		}
	}
	d.Stop(t)
	d = harness.Start(t, harness.Options{Args: args})
	check("after a restart")
	write("blue", 100)
	bill["blue"] += 100 * size
	check("after a restart, and more")
}

// ours runs a vrdma command that must succeed.
func ours(t *testing.T, d *harness.Daemon, args ...string) string {
	t.Helper()
	out, err := d.Command(args...).CombinedOutput()
	if err != nil {
		t.Fatalf("vrdma %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}
