package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// allocations runs the tests that count allocations on the data path. Their bound
// is zero, so the row shows how many of them found some.
func (t *Table) allocations(ctx context.Context, _ *daemon) ([]Row, error) {
	if t.Source == "" {
		return nil, nil
	}
	fmt.Fprintln(t.Progress, "  running the allocation tests")
	// As ourselves, not in the lab: it needs our module cache.
	c := exec.CommandContext(ctx, "go", "test", "-count=1", "-json", "-run", "Alloc", "./internal/...")
	c.Dir = t.Source
	c.Stderr = os.Stderr
	out, err := c.Output()
	passed, failed, parseErr := countTests(bytes.NewReader(out))
	if parseErr != nil {
		return nil, parseErr
	}
	if passed+failed == 0 {
		return nil, fmt.Errorf("found no allocation test in %s (go test: %v)", t.Source, err)
	}
	return []Row{{
		What: "allocations on the data path", Bound: 0, AtMost: true,
		Ours: Series{Name: fmt.Sprintf("%d tests that count", passed+failed), Unit: "allocating", Values: []float64{float64(failed)}},
	}}, nil
}

// countTests counts the outcomes in the output of go test -json. Subtests are part
// of their test.
func countTests(r io.Reader) (passed, failed int, err error) {
	for decoder := json.NewDecoder(r); ; {
		var event struct{ Action, Test string }
		switch err := decoder.Decode(&event); {
		case err == io.EOF:
			return passed, failed, nil
		case err != nil:
			return passed, failed, fmt.Errorf("go test -json printed something else: %w", err)
		case event.Test == "" || strings.Contains(event.Test, "/"):
		case event.Action == "pass":
			passed++
		case event.Action == "fail":
			failed++
		}
	}
}
