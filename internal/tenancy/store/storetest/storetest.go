// Package storetest has what every store has to do, for the tests of each.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/tenancy/store"
)

// A subject is a store whose commits are counted: revisions go up by one or more, and texts say
// which commit it was.
type subject struct {
	store.Store
	t         testing.TB
	before    int64   // the revision when nothing was committed
	revisions []int64 // of the commits that changed something
}

func put(key, value string) store.Write { return store.Write{Key: key, Value: []byte(value)} }
func del(key string) store.Write        { return store.Write{Key: key, Delete: true} }

// commit commits and returns the number of the commit; that of the last if nothing changed.
func (s *subject) commit(writes ...store.Write) int {
	s.t.Helper()
	revision, ok, err := s.Commit(nil, writes)
	if !ok || err != nil {
		s.t.Fatalf("Commit: %v, %v", ok, err)
	}
	return s.count(revision)
}

// count is the number of a revision, which is of the last commit or of a new one.
func (s *subject) count(revision int64) int {
	s.t.Helper()
	switch last := s.revision(len(s.revisions)); {
	case revision < last:
		s.t.Fatalf("revision %d after %d", revision, last)
	case revision > last:
		s.revisions = append(s.revisions, revision)
	}
	return len(s.revisions)
}

// revision is that of the nth commit, from 1.
func (s *subject) revision(n int) int64 {
	if n == 0 {
		return s.before
	}
	return s.revisions[n-1]
}

func (s *subject) number(revision int64) int {
	for n := range len(s.revisions) + 1 {
		if s.revision(n) == revision {
			return n
		}
	}
	return -1
}

// list is what is below a prefix, as text with numbers of commits.
func (s *subject) list(prefix string) (string, int) {
	s.t.Helper()
	list, revision, err := s.List(prefix)
	if err != nil {
		s.t.Fatal(err)
	}
	var out []string
	for _, e := range list {
		out = append(out, fmt.Sprintf("%s=%s@%d", e.Key, e.Value, s.number(e.Revision)))
	}
	return strings.Join(out, " "), s.number(revision)
}

// next is the next batch; it has to come within a minute.
func (s *subject) next(w store.Watcher) (store.Batch, error) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	b, err := w.Next(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		s.t.Fatal("a watch said nothing for a minute")
	}
	return b, err
}

// batch wants the changes of the nth commit.
func (s *subject) batch(w store.Watcher, n int, changes ...store.Change) {
	s.t.Helper()
	want := store.Batch{Revision: s.revision(n), Changes: changes}
	if got, err := s.next(w); err != nil || !reflect.DeepEqual(got, want) {
		s.t.Errorf("the watch says %+v, %v; want %+v", got, err, want)
	}
}

// Run runs all tests; each has a store of its own.
func Run(t *testing.T, open func(t testing.TB) store.Store) {
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := &subject{Store: open(t), t: t}
			list, revision, err := s.List("")
			if err != nil || len(list) > 0 {
				t.Fatalf("a new store has %d entries, %v", len(list), err)
			}
			s.before = revision
			test(t, s)
		})
	}
}

var tests = map[string]func(t *testing.T, s *subject){
	"revisions": func(t *testing.T, s *subject) {
		s.commit(put("b", "1"), put("a", "1"))
		s.commit(put("b", "2"), put("a/x", ""))
		if got, r := s.list(""); got != "a=1@1 a/x=@2 b=2@2" || r != 2 {
			t.Errorf("it has %q at %d", got, r)
		}
		if got, _ := s.list("a"); got != "a=1@1 a/x=@2" {
			t.Errorf("below a it has %q", got)
		}
		if got, _ := s.list("a/"); got != "a/x=@2" {
			t.Errorf("below a/ it has %q", got)
		}
	},
	"nothing changed": func(t *testing.T, s *subject) {
		s.commit(put("a", "1"))
		if n := s.commit(); n != 1 {
			t.Errorf("an empty commit is number %d", n)
		}
		if n := s.commit(del("none")); n != 1 {
			t.Errorf("deleting nothing is number %d", n)
		}
		if n := s.commit(put("a", "1")); n != 2 {
			t.Errorf("writing the same is number %d", n)
		}
	},
	"conditions": func(t *testing.T, s *subject) {
		s.commit(put("a", "1"))
		at := s.revision(1)
		for _, c := range []struct {
			name string
			c    []store.Condition
			ok   bool
		}{
			{"absent, and is", []store.Condition{{Key: "b"}}, true},
			{"absent, and is not", []store.Condition{{Key: "a"}}, false},
			{"as it was", []store.Condition{{Key: "a", Revision: at}}, true},
			{"not as it was", []store.Condition{{Key: "a", Revision: at + 1}}, false},
			{"there, and is not", []store.Condition{{Key: "none", Revision: at}}, false},
			{"one of two", []store.Condition{{Key: "a", Revision: at}, {Key: "none", Revision: at}}, false},
		} {
			before := len(s.revisions)
			r, ok, err := s.Commit(c.c, []store.Write{put("x", c.name)})
			if err != nil || ok != c.ok {
				t.Errorf("%s: %v, %v", c.name, ok, err)
			}
			if want := before + map[bool]int{true: 1}[c.ok]; s.count(r) != want {
				t.Errorf("%s: revision %d, which is not number %d", c.name, r, want)
			}
		}
		s.commit(del("a"))
		if _, ok, _ := s.Commit([]store.Condition{{Key: "a"}}, []store.Write{put("a", "again")}); !ok {
			t.Error("what was deleted is not absent")
		}
	},
	"refused": func(t *testing.T, s *subject) {
		for name, w := range map[string][]store.Write{
			"empty key":  {put("", "1")},
			"twice":      {put("a", "1"), del("a")},
			"long key":   {put(strings.Repeat("k", store.MaxKey+1), "")},
			"long value": {put("a", strings.Repeat("v", store.MaxValue+1))},
			"zero byte":  {put("a\x00b", "1")},
			"reserved":   {put(store.Reserved+"commit", "1")},
		} {
			if _, ok, err := s.Commit(nil, w); ok || err == nil {
				t.Errorf("%s: %v, %v", name, ok, err)
			}
		}
		if got, r := s.list(""); got != "" || r != 0 {
			t.Errorf("it has %q at %d", got, r)
		}
	},
	"watch": func(t *testing.T, s *subject) {
		all, some, later := s.Watch("", s.before+1), s.Watch("a/", s.before+1), s.Watch("", 0)
		s.commit(put("b", "1"), put("a/1", "1"))
		s.commit(put("b", "2"))
		s.commit(del("a/1"), del("a/2"), put("a/3", "3"))
		first := []store.Change{{Key: "a/1", Value: []byte("1")}, {Key: "b", Value: []byte("1")}}
		third := []store.Change{{Key: "a/1", Deleted: true}, {Key: "a/3", Value: []byte("3")}}
		s.batch(all, 1, first...)
		s.batch(later, 1, first...)
		s.batch(all, 2, store.Change{Key: "b", Value: []byte("2")})
		s.batch(all, 3, third...)
		s.batch(some, 1, first[0])
		s.batch(some, 3, third...)
		s.batch(s.Watch("", s.revision(3)), 3, third...)

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := all.Next(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("nothing to come: %v", err)
		}
		future := s.Watch("", s.revision(3)+2)
		s.commit(put("c", "4"))
		s.commit(put("c", "5"))
		s.batch(future, 5, store.Change{Key: "c", Value: []byte("5")})
	},
	"watch waits": func(t *testing.T, s *subject) {
		got := make(chan store.Batch)
		w := s.Watch("a", 0)
		go func() {
			b, _ := w.Next(t.Context())
			got <- b
		}()
		s.commit(put("b", "1"))
		s.commit(put("a", "2"))
		if b := <-got; b.Revision != s.revision(2) {
			t.Errorf("woken with %+v", b)
		}
	},
	"compacted": func(t *testing.T, s *subject) {
		slow := s.Watch("a", s.before+1)
		const each = 100
		for i := range store.History/each + 1 {
			var writes []store.Write
			for k := range each {
				writes = append(writes, put(fmt.Sprintf("a%d", k), fmt.Sprint(i)))
			}
			s.commit(writes...)
		}
		if _, err := s.next(slow); !errors.Is(err, store.ErrCompacted) {
			t.Errorf("a watch from too long ago: %v", err)
		}
		if b, err := s.next(s.Watch("a", s.revision(2))); err != nil || b.Revision != s.revision(2) {
			t.Errorf("a watch from what is kept: %+v, %v", b, err)
		}
	},
	"a large commit is kept whole": func(t *testing.T, s *subject) {
		w := s.Watch("", 0)
		var writes []store.Write
		for i := range 3 * store.History {
			writes = append(writes, put(fmt.Sprintf("k%06d", i), "v"))
		}
		s.commit(writes...)
		if b, err := s.next(w); err != nil || len(b.Changes) != 3*store.History || b.Revision != s.revision(1) {
			t.Errorf("%d changes, %v", len(b.Changes), err)
		}
		if list, r, err := s.List("k"); err != nil || r != s.revision(1) || len(list) != 3*store.History || list[7].Revision != r {
			t.Errorf("%d entries at %d, %v; want %d at %d", len(list), r, err, 3*store.History, s.revision(1))
		}
		// Its entries are as they were written, to conditions too.
		if _, ok, err := s.Commit([]store.Condition{{Key: "k000007", Revision: s.revision(1)}}, []store.Write{put("k", "")}); !ok || err != nil {
			t.Errorf("a condition on an entry of it: %v, %v", ok, err)
		}
		if _, err := s.next(s.Watch("", s.revision(1))); !errors.Is(err, store.ErrCompacted) {
			t.Errorf("the commit before the last: %v", err)
		}
	},
	"a large commit with deletes and a condition": func(t *testing.T, s *subject) {
		s.commit(put("c", "1"), put("k000003", "old"), put("k000004", "old"))
		writes := []store.Write{del("k000003"), del("none")}
		for i := 4; i < 400; i++ {
			writes = append(writes, put(fmt.Sprintf("k%06d", i), strings.Repeat("v", 5000)))
		}
		if _, ok, err := s.Commit([]store.Condition{{Key: "c", Revision: s.revision(1) + 1}}, writes); ok || err != nil {
			t.Fatalf("on a condition that does not hold: %v, %v", ok, err)
		}
		if got, r := s.list(""); got != "c=1@1 k000003=old@1 k000004=old@1" || r != 1 {
			t.Fatalf("it has %q at %d", got, r)
		}
		w := s.Watch("", 0)
		r, ok, err := s.Commit([]store.Condition{{Key: "c", Revision: s.revision(1)}}, writes)
		if !ok || err != nil {
			t.Fatalf("%v, %v", ok, err)
		}
		if b, err := s.next(w); err != nil || len(b.Changes) != 397 || b.Revision != r || !b.Changes[0].Deleted {
			t.Errorf("%d changes, %v", len(b.Changes), err)
		}
		if s.count(r); s.commit(put("k000005", "new")) != 3 {
			t.Error("the next commit is not the next")
		}
		if got, _ := s.list("k000005"); got != "k000005=new@3" {
			t.Error(got)
		}
	},
	"closed": func(t *testing.T, s *subject) {
		w := s.Watch("", 0)
		ended := make(chan error)
		go func() { _, err := w.Next(t.Context()); ended <- err }()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, store.ErrClosed) {
			t.Errorf("the watch: %v", err)
		}
		if _, _, err := s.Commit(nil, []store.Write{put("a", "")}); !errors.Is(err, store.ErrClosed) {
			t.Errorf("Commit: %v", err)
		}
		if _, _, err := s.List(""); !errors.Is(err, store.ErrClosed) {
			t.Errorf("List: %v", err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	},
	"values are copies": func(t *testing.T, s *subject) {
		v := []byte("1")
		s.commit(store.Write{Key: "a", Value: v})
		v[0] = '2'
		if got, _ := s.list(""); got != "a=1@1" {
			t.Error(got)
		}
	},
	"identity": func(t *testing.T, s *subject) {
		if m, there, err := store.Identify(s); there || err != nil {
			t.Fatalf("a new store is %+v, %v", m, err)
		}
		m, condition, write := store.Name()
		if _, ok, err := s.Commit([]store.Condition{condition}, []store.Write{write}); !ok || err != nil {
			t.Fatal(ok, err)
		}
		if got, there, err := store.Identify(s); !there || err != nil || got != m || m.ID == "" || m.Schema != store.Schema {
			t.Errorf("it is %+v, %v, %v", got, there, err)
		}
		_, condition, write = store.Name()
		if _, ok, _ := s.Commit([]store.Condition{condition}, []store.Write{write}); ok {
			t.Error("it was named twice")
		}
	},
}
