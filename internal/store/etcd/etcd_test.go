package etcd

import (
	"fmt"
	"testing"

	"vrdma/internal/store"
	"vrdma/test/etcdtest"
)

// open opens a store; name is a store of its own in the same etcd.
func open(t testing.TB, c *etcdtest.Cluster, name string, change ...func(*Config)) *Store {
	t.Helper()
	cfg := config(c, name)
	for _, f := range change {
		f(&cfg)
	}
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func config(c *etcdtest.Cluster, name string) Config {
	return Config{Endpoints: c.Endpoints(), CA: c.CA, Certificate: c.Certificate, Key: c.Key, Prefix: etcdtest.Prefix + name + "/"}
}

func TestSlice(t *testing.T) {
	c := etcdtest.Start(t, 1)
	a, b := open(t, c, "x"), open(t, c, "x")
	w := b.Watch("", 0)
	r, ok, err := a.Commit(nil, []store.Write{{Key: "k", Value: []byte("v")}})
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	got, err := w.Next(t.Context())
	if err != nil || got.Revision != r {
		t.Fatal(got, err)
	}
	var writes []store.Write
	for i := range 1000 {
		writes = append(writes, store.Write{Key: fmt.Sprintf("k%04d", i), Value: []byte("v")})
	}
	r, ok, err = a.Commit([]store.Condition{{Key: "k", Revision: r}}, writes)
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	if got, err = w.Next(t.Context()); err != nil || got.Revision != r || len(got.Changes) != 1000 {
		t.Fatal(got.Revision, len(got.Changes), err)
	}
	if out := c.Ctl("get", "--prefix", "--keys-only", etcdtest.Prefix+"x/~"); out != "" {
		t.Errorf("left: %s", out)
	}
}
