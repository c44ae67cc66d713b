package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func openTest(t testing.TB, path string) *Bolt {
	t.Helper()
	s, problems, err := Open(path)
	if err != nil || len(problems) > 0 {
		t.Fatalf("Open: %v, %v", problems, err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func put(key, value string) Write { return Write{Key: key, Value: []byte(value)} }
func del(key string) Write        { return Write{Key: key, Delete: true} }

func mustCommit(t testing.TB, s Store, writes ...Write) int64 {
	t.Helper()
	revision, ok, err := s.Commit(nil, writes)
	if !ok || err != nil {
		t.Fatalf("Commit: %v, %v", ok, err)
	}
	return revision
}

func mustList(t testing.TB, s Store, prefix string) (string, int64) {
	t.Helper()
	list, revision, err := s.List(prefix)
	if err != nil {
		t.Fatal(err)
	}
	return texts(list), revision
}

func texts(list []Entry) string {
	var out []string
	for _, e := range list {
		out = append(out, fmt.Sprintf("%s=%s@%d", e.Key, e.Value, e.Revision))
	}
	return strings.Join(out, " ")
}

// next is the next batch; it has to come within a minute.
func next(t testing.TB, w Watcher) (Batch, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	b, err := w.Next(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		t.Fatal("a watch said nothing for a minute")
	}
	return b, err
}
