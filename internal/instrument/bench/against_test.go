package bench

import (
	"context"
	"fmt"
	"io"
	"iter"
	"regexp"
	"slices"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/instrument/drivers"
	"vrdma.dev/vrdma/internal/instrument/probe"
	"vrdma.dev/vrdma/internal/instrument/speedtable"
)

// Runs of the same length advance together, and a run that ends early delays no other.
func TestInterleave(t *testing.T) {
	var log []string
	run := func(name string, steps int) iter.Seq[struct{}] {
		return func(yield func(struct{}) bool) {
			for i := range steps {
				yield(struct{}{})
				log = append(log, fmt.Sprint(i, name))
			}
		}
	}
	interleave([]iter.Seq[struct{}]{run("a", 20), run("b", 20), run("c", 3)})
	if len(log) != 43 {
		t.Fatalf("%d measurements, want 43: %v", len(log), log)
	}
	if !slices.IsSortedFunc(log, func(x, y string) int {
		var i, j int
		fmt.Sscan(x[:len(x)-1], &i)
		fmt.Sscan(y[:len(y)-1], &j)
		return i - j
	}) {
		t.Errorf("out of step: %v", log)
	}
}

// Only the probes of wanted rows run, and in a comparison no baselines.
func TestFillMeasuresWhatIsWanted(t *testing.T) {
	tests := []struct {
		name     string
		pattern  string
		oursOnly bool
		want     string
	}{
		{"all", "", false, "0 1 2 3"},
		{"one row", "second", false, "2 3"},
		{"a comparison", "", true, "0 2"},
		{"one row of a comparison", "first", true, "0"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var ran []string
			var probes []probe.Probe
			for i := range 4 {
				probes = append(probes, probe.Probe{Name: "p", Measure: func(context.Context) (drivers.Reading, error) {
					ran = append(ran, fmt.Sprint(i))
					return drivers.Reading{Value: float64(i + 1)}, nil
				}})
			}
			table := Table{Progress: io.Discard, oursOnly: test.oursOnly}
			if test.pattern != "" {
				table.Rows = regexp.MustCompile(test.pattern)
			}
			rows := []speedtable.Row{ratioRow("first", 1), ratioRow("second", 1), {What: "first, absolute"}}
			if err := table.fill(t.Context(), 1, probes, rows, []source{{0, 1}, {2, 3}, {0, alone}}); err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(ran, " "); got != test.want {
				t.Errorf("measured %s, want %s", got, test.want)
			}
		})
	}
}

func TestChosenRows(t *testing.T) {
	table := Table{Rows: regexp.MustCompile("(?i)deregistering 256")}
	if got := table.chosen(); len(got) != 1 || got[0].name != "local" {
		t.Errorf("got %d parts, want local", len(got))
	}
	table.Only = []string{"cm"}
	if table.Any() {
		t.Error("part cm has a row about registering")
	}
}

func TestPrefixed(t *testing.T) {
	var b strings.Builder
	p := &prefixed{to: &b, prefix: "A "}
	io.WriteString(p, "one")
	io.WriteString(p, " line\ntwo\n")
	io.WriteString(p, "three")
	if want := "A one line\nA two\nA three"; b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
}
