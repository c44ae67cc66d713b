package store_test

import (
	"path/filepath"
	"testing"

	"vrdma.dev/vrdma/internal/tenancy/store"
	"vrdma.dev/vrdma/internal/tenancy/store/storetest"
)

// stores are the stores that must behave alike, with the one in etcd (package etcd).
var stores = map[string]func(t testing.TB) store.Store{
	"memory": func(testing.TB) store.Store { return &store.Memory{} },
	"bolt": func(t testing.TB) store.Store {
		s, problems, err := store.Open(filepath.Join(t.TempDir(), "store"))
		if err != nil || len(problems) > 0 {
			t.Fatalf("Open: %v, %v", problems, err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	},
}

func TestConformance(t *testing.T) {
	for name, open := range stores {
		t.Run(name, func(t *testing.T) { storetest.Run(t, open) })
	}
}

// TestIdentifyRefuses: a store with a newer schema, or without an identity, is rejected.
func TestIdentifyRefuses(t *testing.T) {
	for _, value := range []string{`{"schema":2,"id":"x"}`, `[`, `{"schema":1}`} {
		s := &store.Memory{}
		if _, ok, err := s.Commit(nil, []store.Write{{Key: store.KeyMeta, Value: []byte(value)}}); !ok || err != nil {
			t.Fatal(ok, err)
		}
		if _, there, err := store.Identify(s); !there || err == nil {
			t.Errorf("%s is taken", value)
		}
	}
}
