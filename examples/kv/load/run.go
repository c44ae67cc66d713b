package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"vrdma.dev/vrdma/examples/kv/store"
)

// A Spec describes the work.
type Spec struct {
	Dial       func(context.Context) (store.Client, error)
	Clients    int
	Writers    int // additional clients that only update
	Operations int // of all clients together
	Reads      int // percentage of reads; the rest are updates
	Value      int // bytes
	Keys       Keys
}

// A Result is what Run measured.
type Result struct {
	Operations int
	Elapsed    time.Duration
	Latencies  []time.Duration // sorted
	// Processor time in nanoseconds while the clients worked.
	Server, Client, Daemon uint64
	Messages               uint64 // handled by the server
	Writes                 uint64 // of the writers
	Torn, Asked            uint64 // one-sided reads that were repeated, and that fell back to the server
}

// Rate returns operations per second.
func (r *Result) Rate() float64 { return float64(r.Operations) / r.Elapsed.Seconds() }

// Percentile returns the latency that p percent of the operations do not exceed.
func (r *Result) Percentile(p float64) time.Duration {
	if len(r.Latencies) == 0 {
		return 0
	}
	return r.Latencies[min(int(p/100*float64(len(r.Latencies))), len(r.Latencies)-1)]
}

// Run connects the clients, does the work and measures it.
func (s Spec) Run(ctx context.Context) (_ *Result, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	clients := make([]store.Client, 0, s.Clients+s.Writers+1)
	defer func() {
		for _, c := range clients {
			err = errors.Join(err, c.Close())
		}
	}()
	for range s.Clients + s.Writers + 1 {
		c, err := s.Dial(ctx)
		if err != nil {
			return nil, err
		}
		clients = append(clients, c)
	}
	asks := clients[len(clients)-1] // only asks for statistics

	before, err := asks.Stats(ctx)
	if err != nil {
		return nil, err
	}
	used, start := ProcessTime(), time.Now()
	r, err := s.work(ctx, cancel, clients[:s.Clients], clients[s.Clients:s.Clients+s.Writers])
	if err != nil {
		return nil, err
	}
	r.Elapsed, r.Client = time.Since(start), ProcessTime()-used
	after, err := asks.Stats(ctx)
	if err != nil {
		return nil, err
	}
	r.Server, r.Daemon, r.Messages = after.CPU-before.CPU, after.Daemon-before.Daemon, after.Messages-before.Messages
	for _, c := range clients {
		if c, ok := c.(*store.OneSided); ok {
			r.Torn, r.Asked = r.Torn+c.Torn, r.Asked+c.Asked
		}
	}
	slices.Sort(r.Latencies)
	return r, nil
}

// work runs all clients at the same time. The first error ends all.
func (s Spec) work(ctx context.Context, cancel func(), clients, writers []store.Client) (*Result, error) {
	var busy, rest sync.WaitGroup
	var writes atomic.Uint64
	var first error
	var once sync.Once
	fail := func(err error) {
		once.Do(func() { first = err; cancel() })
	}
	done := make(chan struct{}) // closed when the clients have finished
	for i, c := range writers {
		rest.Go(func() {
			w := s.worker(c, len(clients)+i, 0)
			for {
				select {
				case <-done:
					return
				default:
				}
				if err := w.update(ctx); err != nil {
					fail(err)
					return
				}
				writes.Add(1)
			}
		})
	}
	latencies := make([][]time.Duration, len(clients))
	for i, c := range clients {
		busy.Go(func() {
			n := s.Operations / len(clients)
			if i < s.Operations%len(clients) {
				n++
			}
			w := s.worker(c, i, s.Reads)
			latencies[i] = make([]time.Duration, 0, n)
			for range n {
				began := time.Now()
				if err := w.operation(ctx); err != nil {
					fail(err)
					return
				}
				latencies[i] = append(latencies[i], time.Since(began))
			}
		})
	}
	busy.Wait()
	close(done)
	rest.Wait()
	r := &Result{Operations: s.Operations, Latencies: slices.Concat(latencies...), Writes: writes.Load()}
	return r, first
}

// A worker is a client that works.
type worker struct {
	c      store.Client
	keys   Keys
	reads  int
	random *rand.Rand
	value  []byte // to put
	buf    []byte // to get
	stamp  uint64
}

func (s Spec) worker(c store.Client, number, reads int) *worker {
	return &worker{
		c: c, keys: s.Keys, reads: reads, random: rand.New(rand.NewPCG(uint64(number), 1)),
		value: make([]byte, s.Value), buf: make([]byte, store.MaxValue), stamp: uint64(number) << 24,
	}
}

func (w *worker) operation(ctx context.Context) error {
	if w.random.IntN(100) >= w.reads {
		return w.update(ctx)
	}
	key := w.keys.Next(w.random)
	n, _, err := w.c.Get(ctx, key, w.buf)
	if err != nil {
		return fmt.Errorf("reading key %d: %w", key, err)
	}
	return Check(w.buf[:n], key)
}

func (w *worker) update(ctx context.Context) error {
	key := w.keys.Next(w.random)
	w.stamp++
	Fill(w.value, key, w.stamp)
	if _, err := w.c.Put(ctx, key, w.value); err != nil {
		return fmt.Errorf("updating key %d: %w", key, err)
	}
	return nil
}
