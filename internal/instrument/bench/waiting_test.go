package bench

import (
	"context"
	"errors"
	"math"
	"regexp"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/instrument/drivers"
	"vrdma.dev/vrdma/internal/instrument/probe"
	"vrdma.dev/vrdma/internal/instrument/speedtable"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

func TestParseBusy(t *testing.T) {
	// user 1183, nice 20, system 507, idle 100000, iowait 30, irq 7, softirq 83, steal 45
	got, err := parseBusy("cpu  1183 20 507 100000 30 7 83 45 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
	if err != nil || got != 18 {
		t.Errorf("got %v, %v, want 18 s", got, err)
	}
	for _, text := range []string{"", "cpu 1 2 3\n", "cpu0 1 2 3 4 5 6 7 8 9 10\n", "cpu 1 2 3 4 5 6 x 8 9 10\n"} {
		if got, err := parseBusy(text); err == nil {
			t.Errorf("%q: got %v, want an error", text, got)
		}
	}
}

func TestSpending(t *testing.T) {
	// The background is 0.1 processors. Within 2 s processors are busy for 1.7 s, of which 1.2 s are charged to programs.
	got := between(cpuReading{101, 50, 10.1}, cpuReading{103, 51.2, 11.8}, 0.1)
	if want := (cpuSeconds{1.2, 1.5}); !nearly(got.processes, want.processes) || !nearly(got.machine, want.machine) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := (cpuSeconds{3, 6}).minus(cpuSeconds{1, 2}).per(4); got != (cpuSeconds{0.5, 1}) {
		t.Errorf("got %+v, want a half and one", got)
	}
}

func TestBustle(t *testing.T) {
	if got := busyNote(0.04); got != "" {
		t.Errorf("4 %%: got %q, want nothing", got)
	}
	if got := busyNote(0.3); !strings.Contains(got, "30 % of a processor") {
		t.Errorf("got %q, want 30 %%", got)
	}
}

func TestShareOf(t *testing.T) {
	ratios := []float64{1.3, 1.2, 0.7, 1.9, 1.19}
	if got := shareOf(ratios, 1.2); got != 60 {
		t.Errorf("got %v %%, want 60", got)
	}
	if got, want := ratioList(ratios[:3]), "1.30 x, 1.20 x, 0.70 x"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestTwice(t *testing.T) {
	rows := twice("RPC", "TCP", 1, 0.6)
	if len(rows) != 2 || rows[0].Unbounded || !rows[1].Unbounded || rows[0].Against == rows[1].Against || speedtable.Subject(rows[0].What) == speedtable.Subject(rows[1].What) {
		t.Errorf("got %+v", rows)
	}
	var order []string
	tool := func(name string, value float64) probe.Probe {
		return probe.Probe{Name: name, Unit: "s", Measure: func(context.Context) (drivers.Reading, error) {
			order = append(order, name)
			return drivers.Reading{Value: value}, nil
		}}
	}
	lab := &testbed.Lab{Dir: t.TempDir()}
	table := Table{Lab: lab, Progress: new(strings.Builder), Rounds: 1}
	rows = append(rows, reportedTwice("rping")...)
	burner := []string{"sh", "-c", "echo ready; read end"}
	if err := table.fillTwice(t.Context(), burner, []probe.Probe{tool("ours", 1), tool("TCP", 2), tool("rping", 3)}, rows, []source{{0, 1}, {2, alone}}); err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(order, " "), "ours TCP rping ours TCP rping"; got != want {
		t.Errorf("measured %q, want %q", got, want)
	}
	for i, want := range []string{"ours", "ours, awake", "rping", "rping, awake"} {
		if got := rows[i].Ours.Name; got != want || len(rows[i].Ours.Values) != 1 {
			t.Errorf("row %d is made of %q, want %q", i, got, want)
		}
	}
	if rows[1].Against.Name != "TCP, awake" || rows[3].Against != nil {
		t.Errorf("got %+v, %+v", rows[1], rows[3])
	}
}

// A part that cannot be measured does not prevent the next.
func TestTogether(t *testing.T) {
	table := Table{Progress: new(strings.Builder), Rows: regexp.MustCompile("first|second")}
	row := func(what string) []speedtable.Row {
		return []speedtable.Row{{What: what, Ours: speedtable.Series{Unit: "s"}}}
	}
	p := table.together("whole",
		part{rows: row("first"), measure: func(context.Context, []speedtable.Row) error { return errors.New("no namespaces") }},
		part{rows: row("second"), measure: func(_ context.Context, rows []speedtable.Row) error {
			rows[0].Fill(speedtable.Series{Values: []float64{1}})
			return nil
		}},
		part{rows: row("third"), measure: func(context.Context, []speedtable.Row) error {
			t.Error("nobody asked for the third")
			return nil
		}})
	table.measure(t.Context(), p)
	if p.rows[0].Missing != "no namespaces" || p.rows[1].Missing != "" || len(p.rows[1].Ours.Values) != 1 {
		t.Errorf("got %+v", p.rows)
	}
}

func FuzzWaitParsers(f *testing.F) {
	f.Add("2000 iters in 0.61 seconds = 302.55 usec/iter\n")
	f.Add("cpu  1183 20 507 100000 30 7 83 45 0 0\n")
	f.Fuzz(func(t *testing.T, text string) {
		drivers.ParsePingpong(text) // these must not panic
		parseBusy(text)
		testbed.ParseNumbers("rpc", text, 2)
	})
}

func nearly(a, b float64) bool { return math.Abs(a-b) < 1e-9 }
