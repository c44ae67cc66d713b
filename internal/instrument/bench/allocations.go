package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"syscall"

	"vrdma.dev/vrdma/internal/instrument/speedtable"
)

// packetPackages are the packages that handle every packet.
var packetPackages = []string{"wire", "roce", "transport", "engine"}

// allocations runs the tests that count allocations on the data path. A row shows how many of them fail; the bound is zero.
func (t *Table) allocations() part {
	return part{
		name: "allocations", single: true,
		rows: []speedtable.Row{
			{What: "allocations on the data path", Ours: speedtable.Series{Unit: "allocating"}, AtMost: true},
			{What: "allocations per packet", Ours: speedtable.Series{Unit: "allocating"}, AtMost: true},
		},
		measure: func(ctx context.Context, rows []speedtable.Row) error {
			if t.Source == "" {
				return errors.New("this needs the repository: name it with --source")
			}
			// It runs as our user and outside of the lab, because it needs the module cache.
			c := exec.CommandContext(ctx, "go", "test", "-count=1", "-json", "-run", "Alloc", "./internal/...")
			c.Dir = t.Source
			c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that its tests are killed with it
			c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
			c.Stderr = os.Stderr
			out, err := c.Output()
			tests, parseErr := parseTests(bytes.NewReader(out))
			if parseErr != nil {
				return parseErr
			}
			if len(tests) == 0 {
				return fmt.Errorf("found no allocation test in %s (go test: %v)", t.Source, err)
			}
			rows[0].Fill(tests.failures(func(string) bool { return true }))
			rows[1].Fill(tests.failures(func(pkg string) bool { return slices.Contains(packetPackages, pkg) }))
			return nil
		},
	}
}

// A tested is the result of one test.
type tested struct {
	pkg, name string // pkg is the last element of its package path
	failed    bool
}

type testList []tested

// failures returns how many tests of these packages fail. The name of the series has their number.
func (l testList) failures(in func(pkg string) bool) speedtable.Series {
	count, failed := 0, 0
	for _, t := range l {
		if in(t.pkg) {
			count++
			if t.failed {
				failed++
			}
		}
	}
	s := speedtable.Series{Name: fmt.Sprintf("%d tests that count", count), Unit: "allocating"}
	if count > 0 {
		s.Add(float64(failed))
	}
	return s
}

// parseTests reads the output of go test -json. Subtests are part of their test.
func parseTests(r io.Reader) (tests testList, err error) {
	for decoder := json.NewDecoder(r); ; {
		var event struct{ Action, Package, Test string }
		switch err := decoder.Decode(&event); {
		case err == io.EOF:
			return tests, nil
		case err != nil:
			return tests, fmt.Errorf("go test -json printed something else: %w", err)
		case event.Test == "" || strings.Contains(event.Test, "/"):
		case event.Action == "pass" || event.Action == "fail":
			tests = append(tests, tested{path.Base(event.Package), event.Test, event.Action == "fail"})
		}
	}
}
