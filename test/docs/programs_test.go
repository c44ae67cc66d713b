package docs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/apps"
)

// mostLoad is the load up to which a row is in the table.
const mostLoad = 30

// TestPrograms: the table of docs/reference/programs.md is that of the results file.
func TestPrograms(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(Root(), apps.Results))
	if err != nil {
		t.Fatal(err)
	}
	var rows []apps.Row
	for line := range bytes.Lines(text) {
		var row apps.Row
		if err := json.Unmarshal(line, &row); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		rows = slices.DeleteFunc(rows, func(old apps.Row) bool { return old.Key() == row.Key() })
		rows = append(rows, row)
	}
	if len(rows) == 0 {
		t.Fatalf("%s has no rows", apps.Results)
	}
	slices.SortStableFunc(rows, func(a, b apps.Row) int {
		return strings.Compare(strings.ToLower(a.Program)+a.Place, strings.ToLower(b.Program)+b.Place)
	})
	var b strings.Builder
	last := rows[len(rows)-1]
	fmt.Fprintf(&b, "vrdma %s, %d processors, Linux %s; medians of rounds in which RDMA and TCP take turns. The load is the average number of processes that ran or\nwanted to: far above the number of processors, the ratio says little about an idle machine.\n\n", last.Build, last.Processors, last.Kernel)
	b.WriteString("| program | where | measured | RDMA | its own TCP | ratio | rounds, load | packets of the device |\n|---|---|---|---|---|---|---|---|\n")
	var started strings.Builder
	seen := map[string]bool{}
	left := 0
	for _, r := range rows {
		if load, err := strconv.ParseFloat(r.Load, 64); err == nil && load > mostLoad {
			left++
			continue
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %.2f | %s | %d |\n", r.Program, r.Place, r.What,
			value(r.Median(r.RDMA), r.Unit), value(r.Median(r.TCP), r.Unit), r.Ratio(), fmt.Sprintf("%d, %s", len(r.RDMA), r.Load), r.Packets)
		if !seen[r.Program] {
			seen[r.Program] = true
			fmt.Fprintf(&started, "| %s | `%s` | %s |\n", r.Program, r.Started, r.Checked)
		}
	}
	if left > 0 {
		fmt.Fprintf(&b, "\n%d more rows are in the file, measured at a load above %d: they say nothing.\n", left, mostLoad)
	}
	fmt.Fprintf(&b, "\n| program | started | data that is compared |\n|---|---|---|\n%s", started.String())
	CheckPart(t, "docs/reference/programs.md", "programs", b.String())
}

// value is a number with its unit, in three digits.
func value(v float64, unit string) string {
	digits := 0
	switch {
	case v < 1:
		digits = 3
	case v < 10:
		digits = 2
	case v < 100:
		digits = 1
	}
	return strings.TrimSpace(fmt.Sprintf("%.*f %s", digits, v, unit))
}
