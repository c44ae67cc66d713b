package etcd

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"vrdma.dev/vrdma/internal/tenancy/store"
	"vrdma.dev/vrdma/test/etcdtest"
)

// until waits until a condition is true, a minute at most. It counts attempts, so that a paused machine does not end
// it.
func until(t testing.TB, what string, f func() bool) {
	t.Helper()
	const step = 5 * time.Millisecond
	for range time.Minute / step {
		if f() {
			return
		}
		time.Sleep(step)
	}
	t.Fatalf("after a minute not: %s", what)
}

func untilState(t testing.TB, s *Store, state store.State) store.Health {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("it is %+v", s.Health())
		}
	}()
	until(t, "the store is "+string(state), func() bool { return s.Health().State == state })
	return s.Health()
}

func texts(t testing.TB, s store.Store) string {
	t.Helper()
	list, _, err := s.List("")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range list {
		out = append(out, fmt.Sprintf("%s=%s", e.Key, e.Value))
	}
	return strings.Join(out, " ")
}

func put(key, value string) store.Write { return store.Write{Key: key, Value: []byte(value)} }
func del(key string) store.Write        { return store.Write{Key: key, Delete: true} }

func commit(t testing.TB, s store.Store, writes ...store.Write) int64 {
	t.Helper()
	r, ok, err := s.Commit(nil, writes)
	if !ok || err != nil {
		t.Fatalf("Commit: %v, %v", ok, err)
	}
	return r
}

// etcd is gone for a while: the last state is still there, after a restart too; changes are refused; then all agree.
func TestAway(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t, 1)
	path := filepath.Join(t.TempDir(), "copy")
	s := open(t, c, "s", func(cfg *Config) { cfg.Copy = path })
	_, _, name := store.Name()
	commit(t, s, name, put("a", "1"), put("b", "1"))
	large := []store.Write{del("b")}
	for i := range 300 {
		large = append(large, put(fmt.Sprintf("k%03d", i), "v"))
	}
	commit(t, s, large...)
	want := texts(t, s)
	stop := s.Alive("live/h", []byte("boot"), 2*time.Second)
	defer stop()
	other := open(t, c, "s", func(cfg *Config) { cfg.Endpoints = c.Direct() })
	until(t, "others know that it lives", func() bool { return string(other.etcd.copy.Get("live/h").Value) == "boot" })

	// The first commit after its death says that nothing was changed: it is sent only to a store that answers.
	c.Members[0].Kill()
	until(t, "its last answer is old", func() bool { return time.Since(s.etcd.copy.Heard()) > confirmAfter })
	if _, _, err := s.Commit(nil, []store.Write{put("c", "0")}); err == nil || !strings.Contains(err.Error(), "nothing was changed") {
		t.Errorf("the first commit without the store: %v", err)
	}
	h := untilState(t, s, store.Away)
	if h.Why == nil || time.Since(h.Heard) > time.Hour {
		t.Errorf("away: %+v", h)
	}
	if _, _, err := s.Commit(nil, []store.Write{put("c", "1")}); err == nil || !strings.Contains(err.Error(), "last heard of") {
		t.Errorf("a commit without the store: %v", err)
	}
	stop()
	s.Close()

	s = open(t, c, "s", func(cfg *Config) { cfg.Copy = path })
	if got := strings.ReplaceAll(texts(t, s), " live/h=boot", ""); got != want {
		t.Errorf("the copy has %s, want %s", got, want)
	}
	if h := s.Health(); h.State != store.Away || h.Heard.IsZero() {
		t.Errorf("started without the store: %+v", h)
	}
	fresh, said := config(c, "s"), new(bytes.Buffer)
	fresh.Log, fresh.fresh = slog.New(slog.NewTextHandler(said, nil)), 8*firstTime
	if _, err := Open(fresh); err == nil || !strings.Contains(err.Error(), "no copy") || !strings.Contains(err.Error(), "handshake failed") {
		t.Errorf("without store and copy: %v; want also why there is no connection", err)
	}
	if !strings.Contains(said.String(), "waiting for the store") {
		t.Errorf("while it waited it said only\n%s", said)
	}
	w := s.Watch("", 0)

	c.Members[0].Start()
	c.Ready()
	untilState(t, s, store.InStep)
	until(t, "who does not live any more is gone", func() bool { return s.etcd.copy.Get("live/h").Revision == 0 })
	if got := texts(t, s); got != want {
		t.Errorf("in step again it has %s, want %s", got, want)
	}
	r := commit(t, s, put("c", "1"))
	for {
		b, err := w.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if b.Revision == r {
			break
		}
	}
	defer s.Alive("live/h", []byte("boot 2"), 2*time.Second)()
	until(t, "it lives again", func() bool { return string(other.etcd.copy.Get("live/h").Value) == "boot 2" })
	c.Ctl("del", etcdtest.Prefix+"s/live/h")
	until(t, "it was deleted, and is put again", func() bool { return string(other.etcd.copy.Get("live/h").Value) == "boot 2" })
}

// etcd is away for longer than a lease: the entry is written again with a new lease.
func TestAliveAgain(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t, 1)
	s := open(t, c, "s")
	defer s.Alive("live/h", []byte("boot"), 3*time.Second)() // it is renewed every second
	until(t, "it lives", func() bool { return s.etcd.copy.Get("live/h").Revision != 0 })
	first := s.etcd.copy.Get("live/h").Revision
	c.Members[0].Kill()
	untilState(t, s, store.Away)
	// A server that is back sooner renews the lease, and the entry is not written again.
	time.Sleep(6 * time.Second)
	c.Members[0].Start()
	until(t, "it lives again, on a lease that is kept", func() bool { return s.etcd.copy.Get("live/h").Revision > first })
	at := s.etcd.copy.Get("live/h")
	for end := time.Now().Add(1500 * time.Millisecond); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if s.etcd.copy.Get("live/h").Revision < at.Revision {
			t.Fatal("it went away again")
		}
	}
}

// An etcd that comes back empty, with another identity, or with an older state is rejected.
func TestStrange(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t, 1)
	path := filepath.Join(t.TempDir(), "copy")
	s := open(t, c, "s", func(cfg *Config) { cfg.Copy = path })
	_, _, name := store.Name()
	commit(t, s, name)
	for i := range 20 {
		commit(t, s, put("a", fmt.Sprint(i)))
	}
	want := texts(t, s)
	m := c.Members[0]
	m.Wipe()
	m.Start()
	c.Ready()
	h := untilState(t, s, store.Strange)
	if !strings.Contains(h.Why.Error(), "lost its contents") {
		t.Error(h.Why)
	}
	refused := func() {
		t.Helper()
		if _, _, err := s.Commit(nil, []store.Write{put("c", "1")}); err == nil || !strings.Contains(err.Error(), "nothing was changed") {
			t.Errorf("a commit to a strange store: %v", err)
		}
		if got := texts(t, s); got != want {
			t.Errorf("it has %s, want %s", got, want)
		}
	}
	refused()
	// It is also rejected after a restart of the daemon.
	s.Close()
	s = open(t, c, "s", func(cfg *Config) { cfg.Copy = path })
	untilState(t, s, store.Strange)
	refused()
	c.Ctl("put", etcdtest.Prefix+"s/meta", `{"schema":1,"id":"somebody else"}`)
	until(t, "it is another one", func() bool { return strings.Contains(s.Health().Why.Error(), "somebody else") })
	// The right cluster with an older state.
	c.Ctl("put", etcdtest.Prefix+"s/meta", string(name.Value))
	refused()
	for range 40 {
		c.Ctl("put", etcdtest.Prefix+"s/a", "restored")
	}
	untilState(t, s, store.InStep)
	if got := string(s.etcd.copy.Get("a").Value); got != "restored" {
		t.Errorf("in step it has a=%s", got)
	}
	// Another client writes another identity at run time.
	want = texts(t, s)
	c.Ctl("put", etcdtest.Prefix+"s/meta", `{"schema":2,"id":"newer"}`)
	if h := untilState(t, s, store.Strange); !strings.Contains(h.Why.Error(), "schema 2") {
		t.Error(h.Why)
	}
	refused()
}

// Answers are lost, and the result of Commit is still true.
func TestLostAnswers(t *testing.T) {
	defer func(was time.Duration) { askTime = was }(askTime)
	c := etcdtest.Start(t, 1)
	askTime = 300 * time.Millisecond
	m := c.Members[0]
	s := open(t, c, "s")
	defer s.Close() // before askTime has its old value again
	cfg := config(c, "s")
	secure, err := cfg.tls()
	if err != nil {
		t.Fatal(err)
	}
	truth, err := clientv3.New(clientv3.Config{Endpoints: []string{"https://" + c.Direct()[0]}, TLS: secure, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer truth.Close()
	sure, made := 0, 0
	rounds := 10
	if long {
		rounds = 200
	}
	for n := range rounds {
		value := fmt.Sprint(n)
		muted := make(chan struct{})
		go func() {
			defer close(muted)
			time.Sleep(rand.N(3 * time.Millisecond))
			m.Mute(true)
			time.Sleep(rand.N(2 * askTime))
			m.Mute(false)
		}()
		time.Sleep(rand.N(3 * time.Millisecond))
		_, ok, err := s.Commit(nil, []store.Write{put("n", value)})
		<-muted
		r, e := truth.Get(t.Context(), s.etcd.key("n"))
		if e != nil {
			t.Fatal(e)
		}
		there := len(r.Kvs) > 0 && string(r.Kvs[0].Value) == value
		switch {
		case err == nil && ok != there, err != nil && strings.Contains(err.Error(), "nothing was changed") && there:
			t.Fatalf("round %d: commit says %v, %v; it was made: %v", n, ok, err, there)
		case err == nil || strings.Contains(err.Error(), "nothing was changed"):
			sure++
		}
		if there {
			made++
		}
		until(t, "it works again", func() bool { return s.Health().State == store.InStep })
	}
	t.Logf("of %d commits %d were made, and of %d that was known", rounds, made, sure)
	if sure == 0 {
		t.Error("of no commit the outcome was known")
	}
}

// A watcher that was cut off gets the changes of others, even those that etcd has compacted.
func TestCompacted(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t, 1)
	direct := open(t, c, "s", func(cfg *Config) { cfg.Endpoints = c.Direct() })
	s := open(t, c, "s")
	commit(t, direct, put("a", "1"), put("b", "1"), put("c", "1"))
	f := newFollower(t, s)
	until(t, "it has arrived", func() bool { return texts(t, s) == texts(t, direct) })
	c.Members[0].Cut(true)
	commit(t, direct, put("a", "2"), del("b"))
	var large []store.Write
	for i := range 400 {
		large = append(large, put(fmt.Sprintf("k%03d", i), "v"))
	}
	commit(t, direct, large...)
	r := commit(t, direct, put("d", "1"))
	c.Ctl("compaction", fmt.Sprint(r))
	c.Members[0].Cut(false)
	until(t, "it has arrived", func() bool { return texts(t, s) == texts(t, direct) })
	until(t, "watchers were told", func() bool { return f.texts() == texts(t, direct) })
	untilState(t, s, store.InStep)
}
