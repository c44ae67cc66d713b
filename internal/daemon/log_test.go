package daemon

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"vrdma.dev/vrdma/internal/testkit/locked"
)

// TestPriorities: under journald each line has its priority, and no time in text.
func TestPriorities(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		var b bytes.Buffer
		log := slog.New(newPriorities(&b, format, slog.LevelDebug)).With("a", 1).WithGroup("g")
		log.Debug("d")
		log.Info("i")
		log.Warn("w")
		log.Error("e")
		lines := strings.Split(strings.TrimSpace(b.String()), "\n")
		if len(lines) != 4 {
			t.Fatalf("got %q", lines)
		}
		for i, want := range []string{"<7>", "<6>", "<4>", "<3>"} {
			if !strings.HasPrefix(lines[i], want) || format == "text" && strings.Contains(lines[i], "time=") {
				t.Errorf("got %q, want %s", lines[i], want)
			}
		}
	}
}

// TestJournal: only the stream that the variable names is journald's.
func TestJournal(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	st := info.Sys().(*syscall.Stat_t)
	if !journal(f, fmt.Sprintf("%d:%d", st.Dev, st.Ino)) {
		t.Error("the stream is not recognised")
	}
	for _, other := range []string{"", "x", "1", fmt.Sprintf("%d:%d", st.Dev, st.Ino+1)} {
		if journal(f, other) {
			t.Errorf("%q is recognised", other)
		}
	}
}

// TestRepeats: a flood of one message leaves a few lines and a count, and other messages are not affected.
func TestRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b locked.Buffer
		log := slog.New(newRepeats(slog.NewTextHandler(&b, nil)))
		for i := range 1000 {
			log.Warn("event", "verb", "refused", "object", "NIC red/a", "pid", i)
		}
		log.Warn("event", "verb", "refused", "object", "NIC red/b")
		log.Log(context.Background(), slog.LevelInfo, "other")
		if n := strings.Count(b.String(), "red/a"); n != repeatBurst {
			t.Errorf("%d lines, want %d", n, repeatBurst)
		}
		if !strings.Contains(b.String(), "red/b") || !strings.Contains(b.String(), "other") {
			t.Errorf("other messages are left out:\n%s", b.String())
		}
		before := len(b.String())
		time.Sleep(2 * repeatTime)
		synctest.Wait()
		if want := fmt.Sprintf(`object="NIC red/a" repeated=%d`, 1000-repeatBurst); !strings.Contains(b.String()[before:], want) {
			t.Errorf("got %s, want %s", b.String()[before:], want)
		}
	})
}
