package etcd

import (
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/tenancy/store"
	"vrdma.dev/vrdma/internal/tenancy/store/storetest"
	"vrdma.dev/vrdma/test/etcdtest"
)

func TestMain(m *testing.M) {
	probeEvery, firstTime, helpAfter = 300*time.Millisecond, time.Second, 300*time.Millisecond
	os.Exit(m.Run())
}

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

// number makes names of stores.
var number atomic.Int64

func TestConformance(t *testing.T) {
	c := etcdtest.Start(t, 1)
	storetest.Run(t, func(t testing.TB) store.Store { return open(t, c, fmt.Sprintf("conformance%d", number.Add(1))) })
	if out := c.Ctl("get", "--prefix", "--keys-only", etcdtest.Prefix); strings.Contains(out, "~") {
		t.Errorf("left behind:\n%s", out)
	}
}
