package bench

import (
	"strings"
	"testing"
)

func TestParts(t *testing.T) {
	const want = "local memory cm sockets go copy veth overlay containers wait qos guest vms rxe upgrade move loops allocations"
	if got := strings.Join(Parts(), " "); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, p := range new(Table).parts() {
		for _, row := range p.rows {
			if row.What == "" || row.Bound == 0 && !row.Unbounded && p.name != "allocations" {
				t.Errorf("%s: the row %+v says too little", p.name, row)
			}
		}
	}
}

func TestReceive(t *testing.T) {
	var progress strings.Builder
	report, err := receive(strings.NewReader("  round 1 of 1: a tool\n{\n \"version\": \"v\", \"rows\": [{\"what\": \"w\"}]\n}\n"), &progress)
	if err != nil || report.Version != "v" || len(report.Rows) != 1 || progress.String() != "  round 1 of 1: a tool\n" {
		t.Errorf("got %+v, %v, progress %q", report, err, progress.String())
	}
	for name, text := range map[string]string{"nothing": "", "no report": "  round 1\n", "half a line": "  rou", "half a report": "{\"version\""} {
		if _, err := receive(strings.NewReader(text), &progress); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
