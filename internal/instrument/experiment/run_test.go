package experiment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// fake is an instrument that answers as the test says, and records the cells it was asked for.
type fake struct {
	asked  []Cell
	answer func(n int, c Cell) (Measurement, error)
}

func (f *fake) Measure(_ context.Context, c Cell, _ int) (Measurement, error) {
	f.asked = append(f.asked, c)
	return f.answer(len(f.asked), c)
}

// good answers every cell with a value.
func good(int, Cell) (Measurement, error) {
	return Measurement{Values: map[string]float64{Latency: 1e-6, Bandwidth: 1e9}}, nil
}

func newRun(t *testing.T, dir string, in *fake) *Run {
	t.Helper()
	list, err := Choose([]string{"quick-bandwidth"})
	if err != nil {
		t.Fatal(err)
	}
	w, err := Create(dir, Header{Seed: 5})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return &Run{Experiments: list, Instrument: in, Out: w, Progress: io.Discard, Seed: 5}
}

// Each round has every cell once, in an order that the seed determines.
func TestRounds(t *testing.T) {
	dir := t.TempDir()
	in := &fake{answer: good}
	r := newRun(t, dir, in)
	if err := r.Go(context.Background()); err != nil {
		t.Fatal(err)
	}
	cells := r.Experiments[0].Cells()
	n, rounds := len(cells), r.Experiments[0].Spec.Rounds
	if len(in.asked) != rounds*n {
		t.Fatalf("%d runs of %d cells in %d rounds", len(in.asked), n, rounds)
	}
	for round := range rounds {
		part := in.asked[round*n : (round+1)*n]
		for _, c := range cells {
			if !slices.Contains(part, c) {
				t.Errorf("round %d has no %v", round+1, c)
			}
		}
		if round > 0 && slices.Equal(part, in.asked[:n]) {
			t.Error("two rounds have the same order")
		}
	}
	other := &fake{answer: good}
	if err := newRun(t, t.TempDir(), other).Go(context.Background()); err != nil || !slices.Equal(other.asked, in.asked) {
		t.Errorf("the same seed gives another order: %v", err)
	}
}

// Ctrl-C keeps the records, and resuming measures the rest in the same order.
func TestResume(t *testing.T) {
	whole := &fake{answer: good}
	if err := newRun(t, t.TempDir(), whole).Go(context.Background()); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	first := &fake{answer: func(n int, c Cell) (Measurement, error) {
		if n == 10 {
			cancel()
		}
		return good(n, c)
	}}
	r := newRun(t, dir, first)
	if err := r.Go(ctx); !errors.Is(err, ErrInterrupted) {
		t.Fatalf("interrupted: %v", err)
	}
	r.Out.Close()
	// The last line is incomplete, as after a power failure.
	f, err := os.OpenFile(filepath.Join(dir, FileName), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteString(`{"experiment":"quick-bandw`)
	f.Close()
	out, results, err := Resume(dir)
	if err != nil || !results.Torn || len(results.Records) != 9 {
		t.Fatalf("torn %v, %d records: %v", results.Torn, len(results.Records), err)
	}
	defer out.Close()
	rest := &fake{answer: good}
	again := &Run{Experiments: r.Experiments, Instrument: rest, Out: out, Progress: io.Discard, Seed: 5, Done: results.Records}
	if err := again.Go(context.Background()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(rest.asked, whole.asked[9:]) {
		t.Errorf("%d cells were measured after the 9, want the other %d in their order", len(rest.asked), len(whole.asked)-9)
	}
	all, err := Read(dir)
	if err != nil || all.Torn || len(all.Records) != len(whole.asked) {
		t.Errorf("%d records in the end, want %d: %v", len(all.Records), len(whole.asked), err)
	}
}

// A full disk ends the run with an error. No record is lost, and the run can be resumed.
func TestDiskFull(t *testing.T) {
	dir := t.TempDir()
	in := &fake{}
	r := newRun(t, dir, in)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	kept := r.Out.f
	in.answer = func(n int, c Cell) (Measurement, error) {
		if n == 6 {
			r.Out.f = full
		}
		return good(n, c)
	}
	err = r.Go(context.Background())
	if r.Out.f = kept; err == nil || !strings.Contains(err.Error(), "the result is not kept") || !strings.Contains(err.Error(), "--resume goes on") || len(in.asked) != 6 {
		t.Fatalf("after %d cells: %v", len(in.asked), err)
	}
	out, results, err := Resume(dir)
	if err != nil || len(results.Records) != 5 {
		t.Fatalf("%d records are kept: %v", len(results.Records), err)
	}
	defer out.Close()
	rest := &fake{answer: good}
	if err := (&Run{Experiments: r.Experiments, Instrument: rest, Out: out, Progress: io.Discard, Seed: 5, Done: results.Records}).Go(context.Background()); err != nil {
		t.Fatal(err)
	}
	if rest.asked[0] != in.asked[5] {
		t.Errorf("it goes on with %v, want %v, which was not kept", rest.asked[0], in.asked[5])
	}
}

// A tool that fails becomes a record with the reason, and is not tried for ever.
func TestFailures(t *testing.T) {
	dir := t.TempDir()
	bad := map[Size]error{1 << 10: errors.New("iperf9 hangs")}
	in := &fake{answer: func(n int, c Cell) (Measurement, error) {
		m, _ := good(n, c)
		switch c.Size {
		case 8 << 10:
			m.Values[Bandwidth] = 0
		case 64 << 10:
			m.Values[Rate] = math.Inf(1)
		}
		return m, bad[c.Size]
	}}
	r := newRun(t, dir, in)
	if err := r.Go(context.Background()); err != nil {
		t.Fatal(err)
	}
	results, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := map[Size]string{1 << 10: "iperf9 hangs", 8 << 10: "gave no bandwidth", 64 << 10: "gave +Inf as rate", 1 << 20: ""}
	count := make(map[Cell]int)
	for _, rec := range results.Records {
		count[rec.Cell]++
		if why := want[rec.Cell.Size]; !strings.Contains(rec.Failed, why) || (rec.Failed == "") != (why == "") || (rec.Values == nil) != (why != "") {
			t.Errorf("%v: failed %q with values %v", rec.Cell, rec.Failed, rec.Values)
		}
	}
	for c, n := range count {
		if want[c.Size] != "" && n != hopeless || want[c.Size] == "" && n != r.Experiments[0].Spec.Rounds {
			t.Errorf("%v has %d records", c, n)
		}
	}
}

// A run that lost processors to the hypervisor is repeated, and the record counts the repetitions.
func TestSteal(t *testing.T) {
	dir := t.TempDir()
	in := &fake{answer: func(n int, c Cell) (Measurement, error) {
		m, _ := good(n, c)
		if n == 1 || c.Size == 1<<20 {
			m.Steal = 0.2
		}
		return m, nil
	}}
	r := newRun(t, dir, in)
	r.Quick = true
	if err := r.Go(context.Background()); err != nil {
		t.Fatal(err)
	}
	results, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	repeats := 0
	for _, rec := range results.Records {
		if rec.Cell.Size == 1<<20 && rec.Repeated != mostRepeats {
			t.Errorf("%v was repeated %d times", rec.Cell, rec.Repeated)
		}
		repeats += rec.Repeated
	}
	if len(in.asked) != len(results.Records)+repeats || repeats == 0 {
		t.Errorf("%d runs, %d records, %d repeats", len(in.asked), len(results.Records), repeats)
	}
}

// A run without a value on a busy machine is repeated. If it stays busy, the record says so.
func TestBusy(t *testing.T) {
	dir := t.TempDir()
	tries := make(map[Cell]int)
	in := &fake{answer: func(n int, c Cell) (Measurement, error) {
		tries[c]++
		m, _ := good(n, c)
		switch {
		case c.Size == 1<<10: // always
			return m, fmt.Errorf("no line: %w", ErrBusy)
		case c.Size == 8<<10 && tries[c] == 1: // once
			return m, fmt.Errorf("no line: %w", ErrBusy)
		case c.Size == 64<<10 && tries[c] <= mostRepeats:
			m.Values[Bandwidth] = 0
		case c.Size == 1<<20:
			return m, errors.New("no such program")
		}
		return m, nil
	}}
	r := newRun(t, dir, in)
	for _, e := range r.Experiments {
		e.Spec.Rounds = 1
	}
	if err := r.Go(context.Background()); err != nil {
		t.Fatal(err)
	}
	results, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := map[Size]struct {
		repeated int
		failed   string
	}{
		1 << 10: {mostRepeats, "no line: this machine may be too busy to measure on"}, 8 << 10: {1, ""},
		64 << 10: {mostRepeats, ""}, 1 << 20: {0, "no such program"},
	}
	for _, rec := range results.Records {
		if w := want[rec.Cell.Size]; rec.Repeated != w.repeated || rec.Failed != w.failed || (rec.Values == nil) != (w.failed != "") || tries[rec.Cell] != w.repeated+1 {
			t.Errorf("%v: %d tries, %d repeats, failed %q, values %v; want %+v", rec.Cell, tries[rec.Cell], rec.Repeated, rec.Failed, rec.Values, w)
		}
	}
}

func TestResults(t *testing.T) {
	dir := t.TempDir()
	if _, err := Read(dir); err == nil || !strings.Contains(err.Error(), "holds no results: run vrdma bench run") {
		t.Errorf("nothing there: %v", err)
	}
	w, err := Create(dir, Header{Program: "x"})
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	if _, err := Create(dir, Header{}); err == nil || !strings.Contains(err.Error(), "--resume") {
		t.Errorf("written over: %v", err)
	}
	for text, want := range map[string]string{
		"":                                    "empty",
		"hello\n":                             "not the head",
		`{"version":9,"program":"v9"}` + "\n": "results of version 9, this vrdma reads 1: use the vrdma that wrote them (v9)",
		`{"version":1}` + "\nnonsense\n{}\n":  "line 2 is damaged",
	} {
		if _, err := read(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if _, err := read(io.MultiReader(strings.NewReader("{\"version\":1}\n"), bytes.NewReader(make([]byte, mostLine+1)))); err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("an endless line: %v", err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte("{\"version\":1}\n{\"experiment\":\"a\"}\n{\"exp"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if r, err := read(bytes.NewReader(text)); err == nil && r.Header.Version != Version {
			t.Fatal("no version")
		}
	})
}

func TestStatistics(t *testing.T) {
	if m := Median([]float64{3, 1, 2, 10}); m != 2.5 {
		t.Errorf("median %v", m)
	}
	s := Summarize([]float64{1, 2, 3, 4, 5, 6, 7, 8, 9})
	if s.Median != 5 || s.Low != 2 || s.High != 8 {
		t.Errorf("summary %+v", s)
	}
	// Coverages of order statistics, as in tables of the sign test. Fewer than six values cannot give 95 %.
	for _, test := range []struct {
		n, cut  int
		covered float64
	}{{1, 0, 0}, {2, 0, 0.5}, {3, 0, 0.75}, {5, 0, 0.9375}, {6, 0, 0.96875}, {8, 0, 0.9921875}, {9, 1, 0.9609375}, {10, 1, 0.978515625}, {20, 5, 0.958610534667969}} {
		if cut, covered := orderStatistics(test.n); cut != test.cut || math.Abs(covered-test.covered) > 1e-9 {
			t.Errorf("%d values: %d left out at each end, coverage %v; want %d, %v", test.n, cut, covered, test.cut, test.covered)
		}
	}
	if s := Summarize(nil); s.N != 0 || !math.IsNaN(s.Median) {
		t.Errorf("of nothing %+v", s)
	}
	// R: wilcox.test(1:5, 6:10)$p.value and others.
	for _, test := range []struct {
		a, b []float64
		want float64
	}{
		{[]float64{1, 2, 3, 4, 5}, []float64{6, 7, 8, 9, 10}, 0.007937},
		{[]float64{1, 2, 3}, []float64{4, 5, 6}, 0.1},
		{[]float64{1, 3, 5, 7}, []float64{2, 4, 6, 8}, 0.6857},
		{[]float64{1, 1, 1}, []float64{1, 1, 1}, 1},
		{nil, []float64{1}, 1},
	} {
		if p := Different(test.a, test.b); math.Abs(p-test.want) > 1e-4 {
			t.Errorf("%v against %v: %v, want %v", test.a, test.b, p, test.want)
		}
	}
	if j := Jain([]float64{1, 1, 1, 1}); j != 1 {
		t.Errorf("equal shares: %v", j)
	}
	if j := Jain([]float64{1, 0, 0, 0}); j != 0.25 {
		t.Errorf("one has all: %v", j)
	}
}

func TestTicks(t *testing.T) {
	got, err := ParseTicks("cpu  10 1 10 60 2 3 4 10 0 0\ncpu0 1\n")
	if want := (Ticks{Busy: 28, Steal: 10, All: 100}); err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	for _, text := range []string{"", "cpu 1 2", "cpu0 1 2 3 4 5 6 7 8", "cpu 1 2 3 4 5 6 x 8"} {
		if _, err := ParseTicks(text); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}

// Results of different experiments can be merged, results of the same cannot.
func TestMerge(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	one := func(text string) *Results {
		r := &Results{Header: Header{Version: Version, Started: begin, Experiments: []string{text}}, Records: []Record{{Experiment: text, Time: begin.Add(time.Minute)}}}
		r.Records[0].Seconds = 30
		return r
	}
	all, err := Merge([]*Results{one("a"), one("b")})
	if err != nil || len(all.Records) != 2 || len(all.Header.Experiments) != 2 || len(all.Parts) != 2 || all.Parts[1].Took != 90*time.Second {
		t.Errorf("%+v: %v", all, err)
	}
	// A long pause between two records is not part of the duration.
	resumed := one("c")
	resumed.Header.Program = "2"
	resumed.Records = append(resumed.Records, Record{Experiment: "c", Time: begin.Add(10 * time.Hour), Measurement: Measurement{Seconds: 5}})
	if all, err = Merge([]*Results{one("a"), resumed}); err != nil || all.Parts[1].Took != 95*time.Second || all.Parts[1].Program != "2" {
		t.Errorf("resumed: %+v: %v", all, err)
	}
	if _, err := Merge([]*Results{one("a"), one("a")}); err == nil || !strings.Contains(err.Error(), "leave out -o") {
		t.Errorf("the same twice: %v", err)
	}
}
