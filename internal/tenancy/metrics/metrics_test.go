package metrics

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/tenancy/meter"
)

// world is a source with some tenants.
func world(nics int) Config {
	var totals []meter.Total
	totals = append(totals, meter.Total{Key: meter.Key{Tenant: meter.System}, Live: true})
	for i := range nics {
		t := meter.Total{Key: meter.Key{Tenant: fmt.Sprintf("t%02d", i%20), Network: "net", NIC: fmt.Sprint("n", i)}, Live: true}
		for c := range t.Usage {
			t.Usage[c] = uint64(1000*i + c)
		}
		t.Now = nic.Holdings{Sessions: 1, QPs: 2, Connections: 1, Registered: 4096}
		totals = append(totals, t)
	}
	return Config{Source: &fake{totals: totals}, Version: `odd "version" \ of
two lines`}
}

// fake is a source with fixed numbers.
type fake struct {
	totals []meter.Total
	ready  error
	dead   chan struct{} // nil: the loop answers at once
}

func (f *fake) Totals() []meter.Total { return f.totals }
func (*fake) Device() Device {
	return Device{Name: "rxe0", SentBytes: 7, RcvdBytes: 9, Faults: []Dropped{{"drop", 1}}, Counters: map[string]uint64{"sent_pkts": 3}}
}
func (f *fake) NICs() int { return len(f.totals) - 1 }
func (*fake) Waits() map[string]nic.Waits {
	return map[string]nic.Waits{"bulk": waited(), "latency": {}}
}
func (*fake) Quotas() []Quota {
	return []Quota{{"red", "memory", 40, 100}, {"red", "devices", 1, 0}}
}
func (*fake) Hosts() map[string]int   { return map[string]int{"ready": 2, "gone": 1} }
func (*fake) StoreAge() time.Duration { return 1500 * time.Millisecond }

func (*fake) UsageUnwritten() time.Duration { return 2 * time.Second }
func (*fake) Tight() bool                   { return true }
func (*fake) Generation() int64             { return 17 }
func (*fake) Processor() time.Duration      { return time.Second }
func (f *fake) Ready() error                { return f.ready }
func (*fake) Loops() ([]Loop, uint64) {
	return []Loop{{0, 3, 1500 * time.Millisecond, 0, 0}, {1, 2, time.Second, 5, 4}}, 7
}
func (*fake) Stalls() uint64 { return 2 }
func (f *fake) Alive() error {
	if f.dead != nil {
		<-f.dead
	}
	return nil
}

// waited is three requests: one that waited for at most 2 µs, one for 1 ms, one for a second.
func waited() (w nic.Waits) {
	for _, t := range []time.Duration{2 * time.Microsecond, time.Millisecond, time.Second} {
		w.Count(ib.Time(t))
	}
	return w
}

// TestWaits: the histogram is cumulative, and values above its last bound are in +Inf alone.
func TestWaits(t *testing.T) {
	page := string(serve(t, world(1)).Page())
	for _, want := range []string{
		`vrdma_service_delay_seconds_bucket{class="bulk",le="2.048e-06"} 1`,
		`vrdma_service_delay_seconds_bucket{class="bulk",le="0.000524288"} 1`,
		`vrdma_service_delay_seconds_bucket{class="bulk",le="0.002097152"} 2`,
		`vrdma_service_delay_seconds_bucket{class="bulk",le="0.033554432"} 2`,
		`vrdma_service_delay_seconds_bucket{class="bulk",le="+Inf"} 3`,
		`vrdma_service_delay_seconds_sum{class="bulk"} 1.001002`, `vrdma_service_delay_seconds_count{class="bulk"} 3`,
		`vrdma_service_delay_seconds_count{class="latency"} 0`,
		`vrdma_store_age_seconds 1.5`, `vrdma_usage_unwritten_seconds 2`, `vrdma_memory_pressure 1`, `vrdma_policy_generation 17`,
		`vrdma_loop_across_packets_total{loop="0"} 0`, `vrdma_loop_across_packets_total{loop="1"} 5`, `vrdma_loop_across_lost_packets_total{loop="1"} 4`,
	} {
		if !strings.Contains(page, want+"\n") {
			t.Errorf("the page has no %q", want)
		}
	}
}

func serve(t testing.TB, src Config) *Server {
	t.Helper()
	s, err := Listen("127.0.0.1:0", src)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

var (
	sampleLine = regexp.MustCompile(`^([a-z_]+)(\{[a-z]+="(?:[^"\\\n]|\\.)*"(?:,[a-z]+="(?:[^"\\\n]|\\.)*")*\})? ([0-9.e+-]+)$`)
	familyLine = regexp.MustCompile(`^# (HELP|TYPE) ([a-z_]+) (.+)$`)
)

// parsePage checks the form of a page and returns the samples by name and labels.
func parsePage(t testing.TB, text string) map[string]float64 {
	t.Helper()
	out, seen, family, kind := map[string]float64{}, map[string]bool{}, "", ""
	for _, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		if m := familyLine.FindStringSubmatch(line); m != nil {
			if m[1] == "HELP" {
				if seen[m[2]] {
					t.Fatalf("%s comes twice", m[2])
				}
				family, seen[m[2]] = m[2], true
			} else if kind = m[3]; m[2] != family {
				t.Fatalf("TYPE of %s behind HELP of %s", m[2], family)
			}
			continue
		}
		m := sampleLine.FindStringSubmatch(line)
		if kind == "histogram" && m != nil {
			m[1] = strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(m[1], "_bucket"), "_sum"), "_count")
			m[2] = line // each of its own
		}
		if m == nil || m[1] != family {
			t.Fatalf("in family %s: %q", family, line)
		}
		if (kind == "counter") != strings.HasSuffix(m[1], "_total") {
			t.Errorf("%s is a %s", m[1], kind)
		}
		if _, again := out[m[1]+m[2]]; again {
			t.Fatalf("%s comes twice", m[1]+m[2])
		}
		v, err := strconv.ParseFloat(m[3], 64)
		if err != nil {
			t.Fatal(err)
		}
		out[m[1]+m[2]] = v
	}
	return out
}

func TestPage(t *testing.T) {
	s := serve(t, world(100))
	r, err := http.Get("http://" + s.Addr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK || !strings.HasPrefix(r.Header.Get("Content-Type"), "text/plain; version=0.0.4") {
		t.Fatalf("%v, %v, %v", err, r.Status, r.Header)
	}
	got := parsePage(t, string(text))
	for name, want := range map[string]float64{
		`node_infiniband_port_data_transmitted_bytes_total{device="rxe0",port="1"}`: 7,
		`vrdma_nics`: 100,
		`vrdma_transmit_bytes_total{tenant="t03",network="net"}`:                                                         1000 * (3 + 23 + 43 + 63 + 83),
		`vrdma_queue_pairs{tenant="t03",network="net"}`:                                                                  10,
		`vrdma_dropped_packets_total{tenant="_system",network="",reason="icrc"}`:                                         0,
		`vrdma_messages_total{tenant="t00",network="net",direction="out",op="send"}`:                                     1000*(20+40+60+80) + 5*float64(meter.Sent(0)),
		`vrdma_denied_total{tenant="t00",network="net",reason="revoked"}`:                                                1000*(20+40+60+80) + 5*float64(meter.Refusals(nic.Revoked)),
		`vrdma_build_info{version="odd \"version\" \\ of\ntwo lines",revision="",goversion="` + runtime.Version() + `"}`: 1,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s is %v (%v), want %v", name, v, ok, want)
		}
	}
	if n := len(got); n > 80+20*50 {
		t.Errorf("%d series for 20 tenants", n)
	}
}

// TestLabels: at most 256 NICs have a label at any time, and no sum over NICs falls.
func TestLabels(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	l := &labeller{}
	var totals []meter.Total
	last := 0.0
	series := map[string]float64{}
	for step := range 200 {
		for range 4 {
			totals = append(totals, meter.Total{Key: meter.Key{Tenant: "t", Network: "n", NIC: fmt.Sprint(len(totals))}, Live: true})
		}
		for i := range totals {
			if totals[i].Live {
				totals[i].Usage[meter.TransmitBytes] += uint64(rnd.IntN(5))
				totals[i].Live = rnd.IntN(100) != 0
			}
		}
		sum, n := 0.0, 0
		for _, g := range groups(totals, l) {
			name, v := g.nic, float64(g.used[meter.TransmitBytes])
			sum += v
			n++
			if v < series[name] {
				t.Fatalf("step %d: %s fell from %v to %v", step, name, series[name], v)
			}
			series[name] = v
		}
		if sum < last || n > mostNICs+1 {
			t.Fatalf("step %d: %d series, the sum went from %v to %v", step, n, last, sum)
		}
		last = sum
	}
}

func TestHealth(t *testing.T) {
	defer func(d time.Duration) { aliveTime = d }(aliveTime)
	src := world(1)
	source := src.Source.(*fake)
	dead := make(chan struct{})
	defer close(dead)
	status := func(path string) int {
		w := httptest.NewRecorder()
		(&Server{src: src, busy: make(chan struct{}, atOnce)}).Handler().ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		return w.Code
	}
	if b := status("/readyz"); b != 200 {
		t.Errorf("well: %d", b)
	}
	source.ready = errors.New("not yet")
	if a, b := status("/healthz"), status("/readyz"); a != 200 || b != 503 {
		t.Errorf("not ready: %d, %d", a, b)
	}
	aliveTime = 20 * time.Millisecond
	source.dead = dead
	if a := status("/healthz"); a != 503 {
		t.Errorf("a loop that hangs: %d", a)
	}
	if a := status("/else"); a != 404 {
		t.Errorf("another page: %d", a)
	}
	w := httptest.NewRecorder()
	full := &Server{src: src, busy: make(chan struct{})}
	full.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 503 {
		t.Errorf("too many at a time: %d", w.Code)
	}
}

// TestDashboard: the dashboard in contrib is JSON, and uses only existing metrics and labels.
func TestDashboard(t *testing.T) {
	data, err := os.ReadFile("../../../contrib/grafana/vrdma.json")
	if err != nil {
		t.Fatal(err)
	}
	var board any
	if err := json.Unmarshal(data, &board); err != nil {
		t.Fatal(err)
	}
	src := world(3)
	src.PerNIC = true
	labels := map[string]map[string]bool{}
	for name := range parsePage(t, string(serve(t, src).Page())) {
		family, rest, _ := strings.Cut(name, "{")
		if labels[family] == nil {
			labels[family] = map[string]bool{"instance": true, "job": true}
		}
		for _, m := range regexp.MustCompile(`([a-z]+)="`).FindAllStringSubmatch(rest, -1) {
			labels[family][m[1]] = true
		}
	}
	asked := 0
	name := regexp.MustCompile(`\b(?:vrdma|node_infiniband|infiniband|process)_[a-z_]+`)
	by := regexp.MustCompile(`(?:by|without) ?\(([a-z_, ]+)\)|\{([^}]*)\}`)
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, e := range v {
				text, ok := e.(string)
				if !ok || k != "expr" && k != "query" && k != "definition" {
					walk(e)
					continue
				}
				for _, n := range name.FindAllString(text, -1) {
					asked++
					if labels[n] == nil {
						t.Errorf("%s: there is no metric %s", text, n)
						continue
					}
					for _, m := range by.FindAllStringSubmatch(text, -1) {
						for _, l := range regexp.MustCompile(`[a-z_]+ *(?:[=!]~?|,|$)`).FindAllString(m[1]+m[2], -1) {
							if l = strings.TrimRight(l, " =!~,"); !labels[n][l] {
								t.Errorf("%s: %s has no label %q", text, n, l)
							}
						}
					}
				}
			}
		case []any:
			for _, e := range v {
				walk(e)
			}
		}
	}
	walk(board)
	if asked < 10 {
		t.Errorf("the dashboard asks for %d metrics", asked)
	}
}

func BenchmarkPage1000(b *testing.B) {
	src := world(1000)
	src.PerNIC = true
	s := serve(b, src)
	for b.Loop() {
		s.Page()
	}
}
