package attack

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/instrument/speedtable"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

func victimOf(median, p99 float64) Victim {
	return Victim{Median: speedtable.Series{Unit: "s", Values: []float64{median}}, P99: speedtable.Series{Unit: "s", Values: []float64{p99}}}
}

func TestAttackJudged(t *testing.T) {
	failed := Victim{Median: speedtable.Series{Failures: []string{"no device"}}}
	tests := []struct {
		name    string
		row     Row
		mark    string
		ratio   float64
		mention string
	}{
		{"spared", Row{Alone: victimOf(3e-6, 1e-5), Beside: victimOf(9e-6, 1e-3)}, "PASS", 3, ""},
		{"starved", Row{Alone: victimOf(3e-6, 1e-5), Beside: victimOf(12e-6, 1e-3)}, "MISS", 4, ""},
		{"by one who works", Row{Busy: true, Alone: victimOf(3e-6, 1e-5), Beside: victimOf(12e-6, 1e-3)}, "", 4, ""},
		{"shut out", Row{Alone: victimOf(3e-6, 1e-5), Beside: failed}, "FAILED", 0, "the victim failed in 1 of 1 runs: no device"},
		{"the daemon died", Row{Alone: victimOf(3e-6, 1e-5), Note: "THE DAEMON DIED"}, "FAILED", 0, "DIED"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.row.judge()
			if test.row.mark() != test.mark || !nearly(test.row.Ratio, test.ratio) || !strings.Contains(test.row.Note, test.mention) {
				t.Errorf("got %q, %v, %q, want %q, %v, %q", test.row.mark(), test.row.Ratio, test.row.Note, test.mark, test.ratio, test.mention)
			}
		})
	}
}

func TestAttackReport(t *testing.T) {
	r := Report{Rows: []Row{{
		Attack: "rnr", What: "QPs", Count: 200, Build: "this build", Reached: "200 of 200",
		Alone: victimOf(3e-6, 1e-5), Beside: victimOf(6e-6, 1e-3),
		Before: testbed.Load{Memory: 1 << 20, Anonymous: 1, Mappings: 30, Files: 60}, While: testbed.Load{Memory: 2 << 20, Anonymous: 1, Mappings: 40, Files: 70}, After: testbed.Load{Memory: 1 << 20, Anonymous: 1, Mappings: 31, Files: 61},
	}}}
	r.Rows[0].judge()
	base, err := r.Write(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	text, err1 := os.ReadFile(base + ".md")
	data, err2 := os.ReadFile(base + ".json")
	var back Report
	if err := errors.Join(err1, err2, json.Unmarshal(data, &back)); err != nil || len(back.Rows) != 1 {
		t.Errorf("%v, got %s", err, data)
	}
	const want = "| rnr: 200 QPs | this build | 200 of 200 | 3.00 us, 3.00 us, 10.00 us | 6.00 us, 6.00 us, 1.00 ms | 2 x | 1.00 MiB, 2.00 MiB, 1.00 MiB | 30, 40, 31 | 60, 70, 61 | PASS |\n"
	if !strings.HasSuffix(string(text), want) {
		t.Errorf("got\n%s\nwant at its end\n%s", text, want)
	}
}

// programs/hostile.c implements every attack.
func TestAttacksAreKnown(t *testing.T) {
	source, err := os.ReadFile("../testbed/programs/hostile.c")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range Attacks {
		if !strings.Contains(string(source), "{ \""+a.Name+"\", ") || a.Count < 1 || a.What == "" {
			t.Errorf("hostile.c does not know %+v", a)
		}
	}
}

func nearly(a, b float64) bool { return math.Abs(a-b) < 1e-9 }
