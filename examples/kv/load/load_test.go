package load

import (
	"context"
	"math"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"vrdma.dev/vrdma/examples/kv/store"
)

// TestZipfian compares the frequency of keys with the zipfian distribution.
func TestZipfian(t *testing.T) {
	const n, picks = 1000, 1_000_000
	z := NewZipfian(n)
	r := rand.New(rand.NewPCG(1, 2))
	var count [n]float64
	for range picks {
		count[z.rank(r)]++
	}
	for _, k := range []int{0, 1, 4, 20, 100} {
		// Gray's method is exact for the first two and nearly so for the others.
		want := picks / math.Pow(float64(k+1), theta) / z.zeta
		if count[k] < 0.8*want || count[k] > 1.25*want {
			t.Errorf("rank %d was picked %.0f times, want about %.0f", k, count[k], want)
		}
	}
}

// TestKeysInRange: every picked key exists, and every key is picked eventually.
func TestKeysInRange(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []uint64{1, 2, 3, 10, 64, 97} {
		for name, keys := range map[string]Keys{"uniform": Uniform(n), "zipfian": NewZipfian(n)} {
			seen := map[uint64]bool{}
			for range 20000 {
				k := keys.Next(r)
				if k >= n {
					t.Fatalf("%s: key %d of %d", name, k, n)
				}
				seen[k] = true
			}
			if len(seen) != int(n) {
				t.Errorf("%s: %d keys of %d", name, len(seen), n)
			}
		}
	}
}

// TestValues: Check accepts a value of Fill for its own key only, and no mixture of two values.
func TestValues(t *testing.T) {
	for _, n := range []int{0, 1, 8, 15, 16, 100, 4096} {
		a, b := make([]byte, n), make([]byte, n)
		Fill(a, 7, 1)
		Fill(b, 7, 2)
		if err := Check(a, 7); err != nil {
			t.Errorf("%d bytes: %v", n, err)
		}
		if n < 8 {
			continue
		}
		if Check(a, 8) == nil {
			t.Errorf("%d bytes: the value of key 7 is one of key 8", n)
		}
		if n < 16 {
			continue
		}
		for cut := 8; cut+8 <= n; cut += 8 {
			if Check(append(append([]byte{}, a[:cut]...), b[cut:]...), 7) == nil {
				t.Errorf("%d bytes, mixed at %d: not noticed", n, cut)
			}
		}
	}
}

// memory is a store in a map.
type memory struct {
	mu       sync.Mutex
	values   map[uint64][]byte
	messages uint64
	err      error
	closed   int
}

func (m *memory) Get(_ context.Context, key uint64, dst []byte) (int, uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.messages++
	return copy(dst, m.values[key]), 0, m.err
}

func (m *memory) Put(_ context.Context, key uint64, value []byte) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.messages++
	m.values[key] = append([]byte{}, value...)
	return 0, m.err
}

func (m *memory) Stats(context.Context) (store.Stats, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return store.Stats{Messages: m.messages}, nil
}

func (m *memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed++
	return nil
}

// TestRun counts the operations of clients and writers on a store in memory.
func TestRun(t *testing.T) {
	m := &memory{values: map[uint64][]byte{}}
	spec := Spec{
		Dial:    func(context.Context) (store.Client, error) { return m, nil },
		Clients: 3, Writers: 2, Operations: 1000, Reads: 50, Value: 100, Keys: Uniform(10),
	}
	r, err := spec.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Latencies) != 1000 || r.Operations != 1000 || r.Messages != 1000+r.Writes || r.Rate() <= 0 {
		t.Errorf("%d latencies, %d messages, %d of writers, %.0f a second", len(r.Latencies), r.Messages, r.Writes, r.Rate())
	}
	if r.Percentile(0) > r.Percentile(50) || r.Percentile(50) > r.Percentile(100) || r.Percentile(100) != r.Latencies[999] {
		t.Errorf("percentiles %v %v %v", r.Percentile(0), r.Percentile(50), r.Percentile(100))
	}
	if m.closed != 6 {
		t.Errorf("%d clients closed, want 6", m.closed)
	}
	m.err = store.ErrNoKey
	if _, err := spec.Run(t.Context()); err == nil {
		t.Error("a store that fails was not noticed")
	}
}

// TestProcessTime: the clock of a process advances while it computes, and ProcessTime and TimeOf agree.
func TestProcessTime(t *testing.T) {
	before := ProcessTime()
	for end := time.Now().Add(time.Minute); ProcessTime() == before; {
		if time.Now().After(end) {
			t.Fatal("the clock does not run")
		}
	}
	mine := ProcessTime()
	if other := TimeOf(os.Getpid()); other < mine {
		t.Errorf("%d ns by pid, %d before by the process", other, mine)
	}
	if got := TimeOf(1<<25) + TimeOf(0); got != 0 {
		t.Errorf("%d ns of a process that does not exist", got)
	}
}
