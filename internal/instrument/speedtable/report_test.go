package speedtable

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

func TestSeries(t *testing.T) {
	tests := []struct {
		name            string
		values          []float64
		median, average float64
	}{
		{"nothing", nil, 0, 0},
		{"one", []float64{3}, 3, 3},
		{"odd, unsorted", []float64{9, 1, 2}, 2, 4},
		{"even", []float64{4, 1, 2, 9}, 3, 4},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := Series{Values: test.values}
			if s.Median() != test.median || s.Average() != test.average {
				t.Errorf("median %v, average %v, want %v, %v", s.Median(), s.Average(), test.median, test.average)
			}
		})
	}
	s := Series{}
	s.AddAveraged(2, 10)
	if s.Average() != 10 {
		t.Errorf("average %v, want the tool's own, 10", s.Average())
	}
	s.AddAveraged(2, math.Inf(1))
	s.AddAveraged(2, math.NaN())
	if s.Average() != 10 || len(s.Values) != 3 {
		t.Errorf("averages %v of %v: want none that is no number", s.Averages, s.Values)
	}
}

func TestJudge(t *testing.T) {
	series := func(v ...float64) Series { return Series{Unit: "s", Values: v} }
	base := series(10)
	none := series()
	tests := []struct {
		name string
		row  Row
		pass bool
	}{
		{"ratio at least, kept", Row{Ours: series(40), Against: &base, Bound: 4}, true},
		{"ratio at least, missed", Row{Ours: series(39), Against: &base, Bound: 4}, false},
		{"ratio at most, kept", Row{Ours: series(5), Against: &base, Bound: 0.5, AtMost: true}, true},
		{"absolute at most, missed", Row{Ours: series(6), Bound: 5, AtMost: true}, false},
		{"nothing measured", Row{Ours: none, Bound: 5, AtMost: true}, false},
		{"nothing promised", Row{Ours: series(40), Against: &base, Unbounded: true}, false},
		{"against nothing", Row{Ours: series(1), Against: &none, Bound: 4}, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.row.Judge()
			if test.row.Pass != test.pass {
				t.Errorf("pass %v with %v against %v", test.row.Pass, test.row.Measured, test.row.Bound)
			}
		})
	}
}

func TestMarks(t *testing.T) {
	some := Series{Name: "tcp", Unit: "/s", Values: []float64{2}}
	broken := Series{Name: "tool", Unit: "/s", Failures: []string{"no", "never"}}
	shaky := Series{Name: "tool", Unit: "/s", Values: []float64{4, 4}, Failures: []string{"once"}}
	tests := []struct {
		name              string
		row               Row
		mark, bound, note string
	}{
		{"kept", Row{Ours: some, Against: &some, Bound: 1}, "PASS", ">= 1 x", ""},
		{"missed, with an aim", Row{Ours: shaky, Against: &some, Bound: 1, Aim: 0.5, AtMost: true}, "MISS", "<= 1 x, aim <= 0.5 x", "tool failed in 1 of 3 runs: once"},
		{"no promise, an aim", Row{Ours: some, Unbounded: true, Aim: 500}, "", "aim >= 500.00 /s", ""},
		{"a tool that fails", Row{Ours: broken, Against: &some, Bound: 1.5}, "FAILED", ">= 1.5 x", "tool failed in 2 of 2 runs: never"},
		{"TCP's tool fails", Row{Ours: some, Against: &broken, Bound: 1.5, Note: "hm"}, "FAILED", ">= 1.5 x", "hm; tool failed in 2 of 2 runs: never"},
		{"not measured", Row{Against: &Series{}, Bound: 2, Missing: "no root"}, "not measured", ">= 2 x", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.row.Judge()
			if mark, bound := test.row.mark(), test.row.bound(); mark != test.mark || bound != test.bound || test.row.Note != test.note {
				t.Errorf("got %q, %q, %q, want %q, %q, %q", mark, bound, test.row.Note, test.mark, test.bound, test.note)
			}
		})
	}
}

func TestReportWithGaps(t *testing.T) {
	none := Series{Name: "tcp", Unit: "B/s", Values: []float64{0}}
	r := Report{Rows: []Row{
		{What: "against nothing", Ours: Series{Unit: "B/s", Values: []float64{1}}, Against: &none, Bound: 1},
		{What: "bandwidth", Against: &Series{}, Bound: 2, Missing: "no root: become it"},
		{What: "latency", Against: &Series{}, Bound: 2, Missing: "no root: become it"},
	}}
	for i := range r.Rows {
		r.Rows[i].Judge()
	}
	var text, data strings.Builder
	if err := errors.Join(r.Markdown(&text), r.JSON(&data)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| bandwidth |  |  |  | >= 2 x | not measured |", "\nbandwidth; latency: not measured: no root: become it\n"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("got\n%s\nwant %q", text.String(), want)
		}
	}
}

func TestReportIsWritten(t *testing.T) {
	against := Series{Name: "tcp", Unit: "B/s", Values: []float64{1e9, 2e9}}
	r := Report{Time: time.Unix(0, 0), Version: "v", Machine: Machine{"cpu", 2, "Linux"}, Rows: []Row{
		{What: "bandwidth", Ours: Series{Name: "ours", Unit: "B/s", Values: []float64{6e9}}, Against: &against, Bound: 4, Note: "a remark"},
	}}
	r.Rows[0].Judge()
	dir := t.TempDir()
	base, err := r.Write(dir)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(base + ".md")
	want := "| bandwidth | ours: 6.00 GB/s | tcp: 1.50 GB/s (1.00 GB/s to 2.00 GB/s) | 4 x | >= 4 x | PASS |"
	if err != nil || !strings.Contains(string(text), want) || !strings.Contains(string(text), "bandwidth: a remark") {
		t.Errorf("%v, got\n%s\nwant a line\n%s", err, text, want)
	}
	text, err = os.ReadFile(base + ".json")
	var back Report
	if err != nil || json.Unmarshal(text, &back) != nil || len(back.Rows) != 1 || !back.Rows[0].Pass {
		t.Errorf("%v, got %s", err, text)
	}
}

func TestThisMachine(t *testing.T) {
	if m := ThisMachine(); m.CPUs < 1 || !strings.HasPrefix(m.Kernel, "Linux ") {
		t.Errorf("got %v", m)
	}
}

// A row may be a difference of medians, which can be negative. Without values it has no difference and gives the reason.
func TestSubtract(t *testing.T) {
	row := func(ours, against []float64) Row {
		return Row{Ours: Series{Name: "with", Unit: "s", Values: ours, Failures: []string{"no room"}}, Against: &Series{Name: "without", Unit: "s", Values: against}, Bound: 0.1, AtMost: true}
	}
	for _, test := range []struct {
		row      Row
		measured float64
		mark     string
	}{
		{row([]float64{0.5, 9, 0.25}, []float64{0.375}), 0.125, "MISS"},
		{row([]float64{0.25}, []float64{0.375}), -0.125, "PASS"},
		{row([]float64{0.25}, nil), 0, "FAILED"},
	} {
		r := test.row
		r.Subtract()
		r.Judge()
		if r.Measured != test.measured || r.mark() != test.mark || r.Against != nil || !strings.Contains(r.Note, "with failed in 1 of") {
			t.Errorf("got %+v, %s; want %v, %s", r, r.mark(), test.measured, test.mark)
		}
	}
	if got := experiment.Amount(-0.125, "s"); got != "-125.00 ms" {
		t.Errorf("a negative time is %q", got)
	}
}
