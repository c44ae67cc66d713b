package store

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// stores are what has to behave alike.
var stores = map[string]func(t testing.TB) Store{
	"memory": func(testing.TB) Store { return &Memory{} },
	"bolt":   func(t testing.TB) Store { return openTest(t, filepath.Join(t.TempDir(), "store")) },
}

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

func wantBatch(t testing.TB, w Watcher, want Batch) {
	t.Helper()
	if got, err := next(t, w); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("the watch says %+v, %v; want %+v", got, err, want)
	}
}

func TestConformance(t *testing.T) {
	tests := map[string]func(t *testing.T, s Store){
		"revisions": func(t *testing.T, s Store) {
			if got, r := mustList(t, s, ""); got != "" || r != 0 {
				t.Errorf("an empty store has %q at %d", got, r)
			}
			mustCommit(t, s, put("b", "1"), put("a", "1"))
			mustCommit(t, s, put("b", "2"), put("a/x", ""))
			if got, r := mustList(t, s, ""); got != "a=1@1 a/x=@2 b=2@2" || r != 2 {
				t.Errorf("it has %q at %d", got, r)
			}
			if got, _ := mustList(t, s, "a"); got != "a=1@1 a/x=@2" {
				t.Errorf("below a it has %q", got)
			}
			if got, _ := mustList(t, s, "a/"); got != "a/x=@2" {
				t.Errorf("below a/ it has %q", got)
			}
		},
		"nothing changed": func(t *testing.T, s Store) {
			mustCommit(t, s, put("a", "1"))
			if r := mustCommit(t, s); r != 1 {
				t.Errorf("an empty commit has revision %d", r)
			}
			if r := mustCommit(t, s, del("none")); r != 1 {
				t.Errorf("deleting nothing has revision %d", r)
			}
			if r := mustCommit(t, s, put("a", "1")); r != 2 {
				t.Errorf("writing the same has revision %d", r)
			}
		},
		"conditions": func(t *testing.T, s Store) {
			mustCommit(t, s, put("a", "1"))
			for _, c := range []struct {
				name string
				c    []Condition
				ok   bool
			}{
				{"absent, and is", []Condition{{"b", 0}}, true},
				{"absent, and is not", []Condition{{"a", 0}}, false},
				{"as it was", []Condition{{"a", 1}}, true},
				{"not as it was", []Condition{{"a", 2}}, false},
				{"there, and is not", []Condition{{"none", 1}}, false},
				{"one of two", []Condition{{"a", 1}, {"none", 1}}, false},
			} {
				_, before := mustList(t, s, "")
				r, ok, err := s.Commit(c.c, []Write{put("x", c.name)})
				if err != nil || ok != c.ok {
					t.Errorf("%s: %v, %v", c.name, ok, err)
				}
				if want := before + map[bool]int64{true: 1}[c.ok]; r != want {
					t.Errorf("%s: revision %d, want %d", c.name, r, want)
				}
			}
			mustCommit(t, s, del("a"))
			if _, ok, _ := s.Commit([]Condition{{"a", 0}}, []Write{put("a", "again")}); !ok {
				t.Error("what was deleted is not absent")
			}
		},
		"refused": func(t *testing.T, s Store) {
			for name, w := range map[string][]Write{
				"empty key":  {put("", "1")},
				"twice":      {put("a", "1"), del("a")},
				"long key":   {put(strings.Repeat("k", MaxKey+1), "")},
				"long value": {put("a", strings.Repeat("v", MaxValue+1))},
				"zero byte":  {put("a\x00b", "1")},
			} {
				if _, ok, err := s.Commit(nil, w); ok || err == nil {
					t.Errorf("%s: %v, %v", name, ok, err)
				}
			}
			if got, r := mustList(t, s, ""); got != "" || r != 0 {
				t.Errorf("it has %q at %d", got, r)
			}
		},
		"watch": func(t *testing.T, s Store) {
			all, some, later := s.Watch("", 1), s.Watch("a/", 1), s.Watch("", 0)
			mustCommit(t, s, put("b", "1"), put("a/1", "1"))
			mustCommit(t, s, put("b", "2"))
			mustCommit(t, s, del("a/1"), del("a/2"), put("a/3", "3"))
			first := Batch{1, []Change{{Key: "a/1", Value: []byte("1")}, {Key: "b", Value: []byte("1")}}}
			third := Batch{3, []Change{{Key: "a/1", Deleted: true}, {Key: "a/3", Value: []byte("3")}}}
			wantBatch(t, all, first)
			wantBatch(t, later, first)
			wantBatch(t, all, Batch{2, []Change{{Key: "b", Value: []byte("2")}}})
			wantBatch(t, all, third)
			wantBatch(t, some, Batch{1, []Change{{Key: "a/1", Value: []byte("1")}}})
			wantBatch(t, some, third)
			wantBatch(t, s.Watch("", 3), third)

			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if _, err := all.Next(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("nothing to come: %v", err)
			}
			future := s.Watch("", 5)
			mustCommit(t, s, put("c", "4"))
			mustCommit(t, s, put("c", "5"))
			wantBatch(t, future, Batch{5, []Change{{Key: "c", Value: []byte("5")}}})
		},
		"watch waits": func(t *testing.T, s Store) {
			got := make(chan Batch)
			w := s.Watch("a", 0)
			go func() {
				b, _ := w.Next(t.Context())
				got <- b
			}()
			mustCommit(t, s, put("b", "1"))
			mustCommit(t, s, put("a", "2"))
			if b := <-got; b.Revision != 2 {
				t.Errorf("woken with %+v", b)
			}
		},
		"compacted": func(t *testing.T, s Store) {
			slow := s.Watch("a", 1)
			for i := range History + 1 {
				mustCommit(t, s, put("a", fmt.Sprint(i)))
			}
			if _, err := next(t, slow); !errors.Is(err, ErrCompacted) {
				t.Errorf("a watch from too long ago: %v", err)
			}
			if b, err := next(t, s.Watch("a", 2)); err != nil || b.Revision != 2 {
				t.Errorf("a watch from what is kept: %+v, %v", b, err)
			}
		},
		"a large commit is kept whole": func(t *testing.T, s Store) {
			w := s.Watch("", 0)
			var writes []Write
			for i := range 3 * History {
				writes = append(writes, put(fmt.Sprintf("k%06d", i), "v"))
			}
			mustCommit(t, s, writes...)
			if b, err := next(t, w); err != nil || len(b.Changes) != 3*History {
				t.Errorf("%d changes, %v", len(b.Changes), err)
			}
			mustCommit(t, s, put("k", ""))
			if _, err := next(t, s.Watch("", 1)); !errors.Is(err, ErrCompacted) {
				t.Errorf("the commit before the last: %v", err)
			}
		},
		"closed": func(t *testing.T, s Store) {
			w := s.Watch("", 0)
			ended := make(chan error)
			go func() { _, err := w.Next(t.Context()); ended <- err }()
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if err := <-ended; !errors.Is(err, ErrClosed) {
				t.Errorf("the watch: %v", err)
			}
			if _, _, err := s.Commit(nil, []Write{put("a", "")}); !errors.Is(err, ErrClosed) {
				t.Errorf("Commit: %v", err)
			}
			if _, _, err := s.List(""); !errors.Is(err, ErrClosed) {
				t.Errorf("List: %v", err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		},
		"values are copies": func(t *testing.T, s Store) {
			v := []byte("1")
			mustCommit(t, s, Write{Key: "a", Value: v})
			v[0] = '2'
			if got, _ := mustList(t, s, ""); got != "a=1@1" {
				t.Error(got)
			}
		},
		"identity": func(t *testing.T, s Store) {
			if m, there, err := Identify(s); there || err != nil {
				t.Fatalf("a new store is %+v, %v", m, err)
			}
			m, condition, write := Name("1.0")
			if _, ok, err := s.Commit([]Condition{condition}, []Write{write}); !ok || err != nil {
				t.Fatal(ok, err)
			}
			if got, there, err := Identify(s); !there || err != nil || got != m || m.ID == "" || m.Schema != Schema {
				t.Errorf("it is %+v, %v, %v", got, there, err)
			}
			if _, condition, write = Name("2.0"); true {
				if _, ok, _ := s.Commit([]Condition{condition}, []Write{write}); ok {
					t.Error("it was named twice")
				}
			}
			mustCommit(t, s, put(KeyMeta, `{"schema":2,"id":"x"}`))
			if _, _, err := Identify(s); err == nil {
				t.Error("a newer schema is taken")
			}
			mustCommit(t, s, put(KeyMeta, `[`))
			if _, _, err := Identify(s); err == nil {
				t.Error("a store that does not say who it is is taken")
			}
		},
	}
	for store, open := range stores {
		for name, test := range tests {
			t.Run(store+"/"+name, func(t *testing.T) { test(t, open(t)) })
		}
	}
}
