package workload

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/harness"
)

// AnswersProgram compiles test/testdata/rdmacm.c, which prints every answer of librdmacm.
func AnswersProgram(t testing.TB) string {
	t.Helper()
	return harness.CompileWith(t, "rdmacm", "gcc", "-lrdmacm", "-libverbs")
}

// Answers runs that program on a host and compares its output with Linux' (test/testdata/rdmacm.txt). absent is an unused
// address in the host's network, foreign an address without a route.
func Answers(t testing.TB, h Host, absent, foreign string, limit time.Duration) {
	t.Helper()
	p := h.Program(t, AnswersProgram(t), h.IP, absent, foreign)
	if !p.Ended(limit) || p.Code() != 0 {
		p.End()
		t.Fatalf("failed (limit %v): %s\n%s", limit, p.Fate(), p.Output())
	}
	text, err := os.ReadFile(filepath.Join(harness.Root(), "test", "testdata", "rdmacm.txt"))
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "#") {
			want = append(want, strings.TrimRight(line, "\n"))
		}
	}
	got := strings.Split(strings.TrimRight(strings.ReplaceAll(p.Output(), "\r", ""), "\n"), "\n")
	part := ""
	for i := range max(len(got), len(want)) {
		g, w := "(nothing)", "(nothing)"
		if i < len(got) {
			g = got[i]
		}
		if i < len(want) {
			w = want[i]
		}
		if g != w {
			t.Errorf("%s, line %d:\n got %q\nwant %q", part, i+1, g, w)
			return // what follows may be out of step
		}
		if !strings.HasPrefix(g, " ") {
			part = g
		}
	}
}
