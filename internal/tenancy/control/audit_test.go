package control

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/events"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

func entries(t *testing.T, path string) (out []string) {
	t.Helper()
	if err := ReadAudit(path, func(e *events.Event) error { out = append(out, string(e.Verb)+" "+e.Reason); return nil }); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestAudit: changes of people survive the daemon, other events are not in the log, and a torn line costs only itself.
func TestAudit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	for round := range 2 {
		a, err := OpenAudit(path, true, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		j := NewJournal()
		j.Audit(a)
		j.changes([]events.Event{{Verb: events.Applied, Reason: fmt.Sprint(round)}})
		j.Record(events.Event{Verb: events.Capped})
		j.Record(events.Event{Verb: events.Revoked, Reason: fmt.Sprint(round)})
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		j.Record(events.Event{Verb: events.Revoked, Reason: "after the end"})
		f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		f.WriteString("{\"verb\":\n")
		f.Close()
	}
	if got, want := entries(t, path), []string{"applied 0", "revoked 0", "applied 1", "revoked 1"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// TestAuditRotation: a full log keeps its newest entries, in order, in a bounded number of files.
func TestAuditRotation(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	a, err := openAudit(path, false, 1000, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		a.record([]events.Event{{Verb: events.Applied, Reason: fmt.Sprintf("%03d", i)}})
	}
	a.Close()
	got := entries(t, path)
	if len(got) < 10 || len(got) == 200 || got[len(got)-1] != "applied 199" || !slices.IsSorted(got) {
		t.Errorf("got %q", got)
	}
	if files, _ := os.ReadDir(dir); len(files) != auditFiles {
		t.Errorf("%d files, want %d", len(files), auditFiles)
	}
}

// TestEventLevels: what failed or was refused is a warning.
func TestEventLevels(t *testing.T) {
	for verb, want := range map[events.Verb]string{
		events.Failed: "WARN", events.Refused: "WARN", events.Revoked: "WARN", events.Quota: "WARN", events.Warned: "WARN",
		events.Applied: "INFO", events.Connected: "INFO", events.Capped: "INFO",
	} {
		var b bytes.Buffer
		logEvent(slog.New(slog.NewTextHandler(&b, nil)), events.Event{Verb: verb, Object: tenant.Key{Kind: tenant.KindTenant, Name: "red"}})
		if !strings.Contains(b.String(), "level="+want) {
			t.Errorf("%s: got %s", verb, b.String())
		}
	}
}

func FuzzAudit(f *testing.F) {
	f.Add([]byte("{\"verb\":\"applied\"}\n{\n\nx"))
	f.Fuzz(func(t *testing.T, text []byte) {
		n := 0
		if err := readEntries(bytes.NewReader(text), func(*events.Event) error { n++; return nil }); err != nil || n > bytes.Count(text, []byte("\n")) {
			t.Fatalf("%v, %d", err, n)
		}
	})
}
