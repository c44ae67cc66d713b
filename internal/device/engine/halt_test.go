package engine

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/state"
)

var update = flag.Bool("update", false, "write the golden files of the current format")

// TestFormat checks that every number of format 1 still has its meaning.
func TestFormat(t *testing.T) {
	const golden = "testdata/format1.fields"
	now, err := state.Fields(EngineState{})
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		os.MkdirAll(filepath.Dir(golden), 0o755)
		os.WriteFile(golden, []byte(strings.Join(now, "\n")+"\n"), 0o644)
	}
	b, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if line = strings.TrimSpace(line); !slices.Contains(now, line) {
			t.Errorf("format 1 has the field %q: a number keeps its meaning for ever", line)
		}
	}
}

// TestHalt halts the loop again and again while programs transfer data. Nothing completes meanwhile, and nothing is
// lost.
func TestHalt(t *testing.T) {
	a, b := pair(t)
	e := a.c.e
	for i := range 50 {
		pattern(a.c.mem[:100_000], byte(i))
		a.post(wr{op: opWrite, flags: signal, n: 100_000, remote: b.c.base, rkey: b.mr.RKey, id: uint64(i)})
		failed := error(nil)
		if i%2 == 0 {
			failed = errors.New("the next daemon failed")
		}
		err := e.Halt(context.Background(), func() error {
			before := shared(a.cqr.mem, 128).Load()
			a.post(wr{op: opWrite, flags: signal, n: 8, remote: b.c.base, rkey: b.mr.RKey, id: 1000})
			for range 1000 {
				yield()
			}
			if shared(a.cqr.mem, 128).Load() != before {
				t.Error("a halted loop has completed a request")
			}
			return failed
		})
		if err != failed {
			t.Fatalf("Halt returned %v, want %v", err, failed)
		}
		for _, id := range []uint64{uint64(i), 1000} {
			if w := a.wait(); w.status != 0 || w.id != id {
				t.Fatalf("got %+v, want %d", w, id)
			}
		}
	}
}

// TestHaltTimesOut: memory that does not arrive ends Halt with an error that names the program, and the loop continues.
func TestHaltTimesOut(t *testing.T) {
	e := foreignEngine(t, 0)
	ca, cb := newClient(t, e), newClient(t, e)
	far := cb.foreign()
	a, b := ca.newQP(rc), cb.newQP(rc)
	connect(a, b)
	release := far.hold()
	pattern(a.c.mem[:5000], 9)
	a.post(wr{op: opWrite, flags: signal, n: 5000, remote: b.c.base, rkey: b.mr.RKey})
	for far.stuck.Load() == 0 {
		yield()
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := e.Halt(ctx, func() error {
		t.Error("halted although a thread writes memory")
		return nil
	})
	if want := fmt.Sprintf("process %d (test)", os.Getpid()); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), want) {
		t.Errorf("Halt returned %v, want an error that names %s", err, want)
	}
	release()
	if err := e.Halt(context.Background(), func() error {
		for range 2 {
			if cb.space.Writing() {
				t.Error("a thread writes memory of a halted loop")
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if w := a.wait(); w.status != uint32(transport.Success) {
		t.Errorf("got %+v", w)
	}
}
