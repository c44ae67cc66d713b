package docs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMoves: the table of docs/explanation/live-migration.md is that of docs/report/move.json, which make moves measures.
func TestMoves(t *testing.T) {
	const page = "docs/explanation/live-migration.md"
	text, err := os.ReadFile(filepath.Join(Root(), "docs/report/move.json"))
	if errors.Is(err, fs.ErrNotExist) {
		CheckPart(t, page, "moves", "There are no results yet: `make moves` measures them.\n")
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	var r results
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	day, _, _ := strings.Cut(r.Time, "T")
	fmt.Fprintf(&b, "vrdma %s, %s; %s, %d CPUs, %s.\n\n| what | measured | wanted | |\n|---|---|---|---|\n", r.Version, day, r.Machine.CPU, r.Machine.CPUs, r.Machine.Kernel)
	for _, row := range r.Rows {
		if len(row.Ours.Values) == 0 {
			continue
		}
		wanted := ""
		if !row.Unbounded {
			wanted = "≤ " + quantity(row.Bound, row.Ours.Unit)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", row.What, quantity(median(row.Ours.Values), row.Ours.Unit), wanted, row.Note)
	}
	CheckPart(t, page, "moves", b.String())
}
