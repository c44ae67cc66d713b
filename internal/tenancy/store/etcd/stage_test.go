package etcd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"vrdma.dev/vrdma/internal/tenancy/store"
	"vrdma.dev/vrdma/test/etcdtest"
)

// keys are the store's own keys in etcd.
func keys(t testing.TB, s *Store) (own []string) {
	t.Helper()
	r, err := s.etcd.client.Get(t.Context(), s.etcd.key(store.Reserved), clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range r.Kvs {
		if strings.Contains(string(kv.Key), prefixTurn) {
			continue
		}
		own = append(own, strings.TrimPrefix(string(kv.Key), s.etcd.cfg.Prefix))
	}
	return own
}

func largeWrites(n int, value string) (writes []store.Write) {
	for i := range n {
		writes = append(writes, put(fmt.Sprintf("k%04d", i), value))
	}
	return writes
}

// prepareLarge does the first step of a large commit, like a writer that dies afterwards.
func prepareLarge(t testing.TB, s *Store, id string, writes []store.Write) (record, clientv3.LeaseID) {
	t.Helper()
	lease, err := s.etcd.client.Grant(t.Context(), writerTime)
	if err != nil {
		t.Fatal(err)
	}
	pieces := cutPieces(writes)
	rec := record{Schema: store.Schema, ID: id, Pieces: len(pieces)}
	if err := s.commits.stage(rec, pieces, lease.ID); err != nil {
		t.Fatal(err)
	}
	return rec, lease.ID
}

// A writer dies before, after and during the copying of its large commit. Readers see all of it or nothing, the next
// commit finishes it, and nothing is left behind.
func TestKilledCommit(t *testing.T) {
	c := etcdtest.Start(t, 1)
	a, b := open(t, c, "s"), open(t, c, "s")
	commit(t, a, put("k0001", "old"), put("z", "1"))

	// Before: the commit never happened.
	_, lease := prepareLarge(t, a, strings.Repeat("A", 26), largeWrites(500, "never"))
	if err := b.sweeper.sweep(); err != nil || len(keys(t, b)) == 0 {
		t.Fatalf("pieces of a writer that lives are gone: %v, %v", keys(t, b), err)
	}
	if _, err := a.etcd.client.Revoke(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	if err := b.sweeper.sweep(); err != nil || len(keys(t, b)) > 0 {
		t.Fatalf("pieces of a dead writer stay: %v, %v", keys(t, b), err)
	}
	if got := texts(t, b); got != "k0001=old z=1" {
		t.Fatalf("it has %s", got)
	}

	// Afterwards it is visible, in existing watches and to new clients.
	for i, folded := range []int{0, 3} {
		value := fmt.Sprintf("new %d", i)
		rec, lease := prepareLarge(t, a, strings.Repeat(string(rune('B'+i)), 26), append(largeWrites(500, value), del("z")))
		w := b.Watch("", 0)
		text, err := json.Marshal(rec)
		if err != nil {
			t.Fatal(err)
		}
		r, err := a.etcd.client.Put(t.Context(), a.etcd.key(keyCommit), string(text))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.etcd.client.Revoke(t.Context(), lease); err != nil {
			t.Fatal(err)
		}
		batch, err := w.Next(t.Context())
		if err != nil || batch.Revision != r.Header.Revision || len(batch.Changes) < 500 {
			t.Fatalf("who watches: %d changes at %d, %v; it was committed at %d", len(batch.Changes), batch.Revision, err, r.Header.Revision)
		}
		for _, piece := range cutPieces(largeWrites(500, value))[:folded] {
			if _, err := a.etcd.client.Txn(t.Context()).Then(a.etcd.operations(piece)...).Commit(); err != nil {
				t.Fatal(err)
			}
		}
		late := open(t, c, "s")
		if got := texts(t, late); got != texts(t, b) || !strings.Contains(got, "k0001="+value) || strings.Contains(got, "z=") {
			t.Fatalf("who comes later has %.80s…", got)
		}
		before, _, _ := b.List("k0001")
		if err := b.sweeper.sweep(); err != nil || len(keys(t, b)) == 0 {
			t.Fatalf("the pieces of a visible commit are tidied away: %v", err)
		}
		// Another client commits on a condition that names an entry of it.
		if _, ok, err := b.Commit([]store.Condition{{Key: "k0001", Revision: before[0].Revision}}, []store.Write{put("z", "2")}); !ok || err != nil {
			t.Fatalf("the next commit: %v, %v", ok, err)
		}
		if left := keys(t, b); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
		for {
			batch, err := w.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if len(batch.Changes) != 1 || batch.Changes[0].Key != "z" {
				t.Fatalf("watchers are told of copies: %d changes, %v", len(batch.Changes), batch.Changes[0].Key)
			}
			break
		}
		fresh := open(t, c, "s")
		until(t, "all agree", func() bool {
			return texts(t, fresh) == texts(t, b) && texts(t, late) == texts(t, b) && texts(t, a) == texts(t, b)
		})
	}
}

// Another client removes ~commit before it was copied: readers see the values of the keys.
func TestCommitRemoved(t *testing.T) {
	c := etcdtest.Start(t, 1)
	s := open(t, c, "s")
	commit(t, s, put("z", "1"))
	rec, _ := prepareLarge(t, s, strings.Repeat("A", 26), append(largeWrites(300, "v"), del("z")))
	text, _ := json.Marshal(rec)
	c.Ctl("put", s.etcd.key(keyCommit), string(text))
	until(t, "it is visible", func() bool { return s.etcd.copy.Get("k0001").Revision != 0 })
	c.Ctl("del", s.etcd.key(keyCommit))
	until(t, "it is gone", func() bool { return texts(t, s) == "z=1" })
}

// Foreign values in the store's own keys and entries stop no client.
func TestHostile(t *testing.T) {
	c := etcdtest.Start(t, 1)
	s := open(t, c, "s")
	_, _, name := store.Name()
	commit(t, s, name, put("a", "0"))
	id := strings.Repeat("H", 26)
	at := func(key string) string { return etcdtest.Prefix + "s/" + key }
	for i, puts := range [][]string{
		{at("~commit"), "nonsense"},
		{at("~commit"), `{"schema":1,"id":"../../x","pieces":1}`},
		{at("~commit"), `{"schema":1,"id":"` + id + `","pieces":1000000000}`},
		{at("~stage/" + id + "/000000"), "\xff\xff\xff\xff\xff\xff\xff\xff\x01", at("~commit"), `{"schema":1,"id":"` + id + `","pieces":1}`},
		{at("~stage/" + id + "/000000"), string(appendWrites(nil, []store.Write{put("meta", `{"schema":1,"id":"mine"}`)})), at("~commit"), `{"schema":1,"id":"` + id + `","pieces":1}`},
		{at("~stage/" + id + "/000000"), string(appendWrites(nil, []store.Write{put("~commit", `x`)})), at("~commit"), `{"schema":1,"id":"` + id + `","pieces":1}`},
		{at("~stage/"), "x", at("~stage/x"), "x", at("~other"), "x", at("~"), "x", at(strings.Repeat("k", 2000)), "x", at("~writer/x"), "x"},
	} {
		for ; len(puts) > 0; puts = puts[2:] {
			if _, err := s.etcd.client.Put(t.Context(), puts[0], puts[1]); err != nil {
				t.Fatal(err)
			}
		}
		commit(t, s, put("a", fmt.Sprint(i)))
		fresh := open(t, c, "s")
		if got := texts(t, fresh); got != fmt.Sprintf("a=%d meta=%s", i, name.Value) || got != texts(t, s) {
			t.Errorf("%d: it has %s, and who came later %s", i, texts(t, s), got)
		}
		fresh.Close()
	}
	if len(s.Health().Problems) < 6 {
		t.Errorf("it reports %q", s.Health().Problems)
	}
	if err := s.sweeper.sweep(); err != nil {
		t.Fatal(err)
	}
	// A commit of a newer version is left to a newer client.
	if _, err := s.etcd.client.Put(t.Context(), at("~commit"), `{"schema":9,"id":"`+id+`","pieces":1}`); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Commit(nil, []store.Write{put("a", "x")}); err == nil || !strings.Contains(err.Error(), "schema 9") {
		t.Errorf("a commit over one of a newer version: %v", err)
	}
}

// A host that was taken over fills etcd: other hosts keep what they have, and continue when there is less again.
func TestTooLarge(t *testing.T) {
	c := etcdtest.Start(t, 1)
	small := func(cfg *Config) { cfg.most, cfg.part, cfg.again = 400<<10, 1<<20, 200*time.Millisecond }
	s := open(t, c, "large", small)
	_, _, name := store.Name()
	commit(t, s, name, put("a", "0"))
	at := func(i int) string { return etcdtest.Prefix + fmt.Sprintf("large/k%d", i) }
	value := strings.Repeat("x", 32<<10)
	const n = 100 // more than one answer may have
	for i := range n {
		if _, err := s.etcd.client.Put(t.Context(), at(i), value); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "too much is noticed", func() bool { return s.Health().State == store.Strange })
	if got := s.etcd.copy.Get("a"); string(got.Value) != "0" {
		t.Errorf("the copy has %q", got.Value)
	}
	list, _, err := s.List("")
	held := 0
	for _, e := range list {
		held += len(e.Value)
	}
	if err != nil || held > 500<<10 {
		t.Errorf("the copy has %d bytes, %v", held, err)
	}
	if _, _, err := s.Commit(nil, []store.Write{put("a", "1")}); err == nil || !strings.Contains(err.Error(), "bytes") {
		t.Errorf("a commit: %v", err)
	}
	// One that may have more lists it in several answers.
	big := open(t, c, "large", func(cfg *Config) { cfg.part = 1 << 20 })
	if list, _, err := big.List("k"); err != nil || len(list) != n {
		t.Errorf("%d entries, %v; want %d", len(list), err, n)
	}
	if _, err := s.etcd.client.Delete(t.Context(), etcdtest.Prefix+"large/k", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	until(t, "it is in step again", func() bool { return s.Health().State == store.InStep && texts(t, s) == "a=0 meta="+string(name.Value) })
	commit(t, s, put("a", "2"))
}

func FuzzPiece(f *testing.F) {
	f.Add([]byte{})
	f.Add(appendWrites(nil, []store.Write{put("a", "1"), del("b"), put("c", "")}))
	f.Add([]byte("\x01a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		writes, err := readWrites(b)
		if err != nil {
			return
		}
		again, err := readWrites(appendWrites(nil, writes))
		if err != nil || !reflect.DeepEqual(again, writes) {
			t.Errorf("%v, %v; want %v", again, err, writes)
		}
	})
}

// What fits into pieces comes out of them.
func TestPieces(t *testing.T) {
	var writes []store.Write
	for i := range 700 {
		w := store.Write{Key: fmt.Sprintf("k%d", i), Delete: i%7 == 0}
		if !w.Delete {
			w.Value = bytes.Repeat([]byte{'v'}, []int{0, 10, 100000, store.MaxValue}[i%4*(i%50/49)])
		}
		writes = append(writes, w)
	}
	var got []store.Write
	for _, piece := range cutPieces(writes) {
		b := appendWrites(nil, piece)
		if len(b) > 1400<<10 || len(piece) > mostOps {
			t.Errorf("a piece has %d bytes, %d writes", len(b), len(piece))
		}
		list, err := readWrites(b)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, list...)
	}
	if len(got) != len(writes) {
		t.Fatalf("%d writes, want %d", len(got), len(writes))
	}
	for i := range got {
		if got[i].Key != writes[i].Key || !bytes.Equal(got[i].Value, writes[i].Value) || got[i].Delete != writes[i].Delete {
			t.Fatalf("write %d differs", i)
		}
	}
}
