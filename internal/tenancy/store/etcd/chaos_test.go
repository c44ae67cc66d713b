package etcd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/tenancy/store"
	"vrdma.dev/vrdma/test/etcdtest"
)

// long is the form of make test-all.
var long = os.Getenv("VRDMA_TEST_ALL") != ""

// A follower assembles the state from a list and a watch.
type follower struct {
	mu    sync.Mutex
	state map[string]string
}

func newFollower(t testing.TB, s store.Store) *follower {
	t.Helper()
	f := &follower{}
	var w store.Watcher
	list := func() {
		entries, r, err := s.List("")
		if err != nil {
			return // closed
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.state = make(map[string]string)
		for _, e := range entries {
			f.state[e.Key] = string(e.Value)
		}
		w = s.Watch("", r+1)
	}
	list()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		for {
			b, err := w.Next(ctx)
			switch {
			case errors.Is(err, store.ErrCompacted):
				list()
				continue
			case err != nil:
				return
			}
			f.mu.Lock()
			for _, c := range b.Changes {
				if c.Deleted {
					delete(f.state, c.Key)
				} else {
					f.state[c.Key] = string(c.Value)
				}
			}
			f.mu.Unlock()
		}
	}()
	return f
}

func (f *follower) texts() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for _, key := range slices.Sorted(maps.Keys(f.state)) {
		out = append(out, key+"="+f.state[key])
	}
	return strings.Join(out, " ")
}

// trouble kills, stops and cuts off members at random, never a majority for long, until ctx ends. Then all members
// work.
func trouble(ctx context.Context, c *etcdtest.Cluster, rnd *rand.Rand) {
	wait := func(most time.Duration) {
		select {
		case <-time.After(time.Duration(rnd.Int64N(int64(most)))):
		case <-ctx.Done():
		}
	}
	for ctx.Err() == nil {
		m := c.Members[rnd.IntN(len(c.Members))]
		switch rnd.IntN(3) {
		case 0:
			m.Kill()
			wait(time.Second)
			m.Start()
		case 1:
			m.Pause()
			wait(2 * time.Second)
			m.Resume()
		case 2:
			m.Cut(true)
			wait(2 * time.Second)
			m.Cut(false)
		}
		wait(time.Second)
	}
}

// Several writers make small and large commits while members are killed, stopped and cut off. No reader sees a part of
// a commit, and at the end all agree.
func TestChaos(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t, 3)
	const groups, size = 6, 150 // a large commit writes one value to all keys of a group
	var stores []*Store
	var followers []*follower
	for range 3 {
		s := open(t, c, "s")
		stores, followers = append(stores, s), append(followers, newFollower(t, s))
	}
	last := 8 * time.Second
	if long {
		last = 2 * time.Minute
	}
	ctx, cancel := context.WithTimeout(t.Context(), last)
	defer cancel()
	var work sync.WaitGroup
	var mu sync.Mutex
	made, failed := 0, 0
	for i, s := range stores {
		rnd := rand.New(rand.NewPCG(uint64(i), 7))
		work.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				g, value := rnd.IntN(groups), fmt.Sprintf("%d.%d", i, n)
				writes := []store.Write{put(fmt.Sprintf("small/%d", rnd.IntN(40)), value)}
				if rnd.IntN(4) == 0 {
					for k := range size {
						writes = append(writes, put(fmt.Sprintf("g%d/%03d", g, k), value))
					}
				} else if rnd.IntN(3) == 0 {
					writes[0] = del(writes[0].Key)
				}
				_, _, err := s.Commit(nil, writes)
				mu.Lock()
				if made++; err != nil {
					failed++
				}
				mu.Unlock()
				if err != nil {
					time.Sleep(20 * time.Millisecond)
				}
			}
		})
		work.Go(func() {
			for ctx.Err() == nil {
				list, _, err := s.List("g")
				if err != nil {
					t.Error(err)
					return
				}
				seen := make(map[string]string)
				for _, e := range list {
					group, _, _ := strings.Cut(e.Key, "/")
					if was, found := seen[group]; found && was != string(e.Value) {
						t.Errorf("half of a commit: group %s has %s and %s", group, was, e.Value)
						return
					}
					seen[group] = string(e.Value)
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	trouble(ctx, c, rand.New(rand.NewPCG(rand.Uint64(), 0)))
	work.Wait()
	c.Ready()
	t.Logf("%d commits, %d of them failed", made, failed)
	if made == failed {
		t.Errorf("of %d commits %d failed", made, failed)
	}
	// One last commit each settles staged commits with an unknown result.
	for i, s := range stores {
		until(t, "a commit succeeds", func() bool {
			_, ok, err := s.Commit(nil, []store.Write{put(fmt.Sprintf("last/%d", i), "done")})
			return ok && err == nil
		})
	}
	truth := open(t, c, "s")
	for i, s := range stores {
		untilState(t, s, store.InStep)
		until(t, fmt.Sprintf("store %d agrees", i), func() bool { return texts(t, s) == texts(t, truth) })
		until(t, fmt.Sprintf("who follows store %d agrees", i), func() bool { return followers[i].texts() == texts(t, truth) })
	}
}

// Clients allocate and free at random while members die. No address is allocated twice, and none without an owner.
func TestAllocations(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t, 3)
	goal := 300
	if long {
		goal = 10000
	}
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() { trouble(ctx, c, rand.New(rand.NewPCG(rand.Uint64(), 1))) })
	var mu sync.Mutex
	done := 0
	var clients sync.WaitGroup
	for i := range 2 {
		clients.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), 3))
			s := open(t, c, "s")
			for n := 0; ; n++ {
				mu.Lock()
				over := done >= goal
				done++
				mu.Unlock()
				if over {
					return
				}
				if rnd.IntN(50) == 0 { // a killed daemon that restarts
					s.etcd.cancel()
					s.Close()
					s = open(t, c, "s")
				}
				allocate(s, rnd, i, n)
			}
		})
	}
	clients.Wait()
	cancel()
	work.Wait()
	c.Ready()
	s := open(t, c, "s")
	list, _, err := s.List("")
	if err != nil {
		t.Fatal(err)
	}
	addresses, nics := make(map[string]string), make(map[string]string)
	for _, e := range list {
		if address, found := strings.CutPrefix(e.Key, "alloc/"); found {
			addresses[address] = string(e.Value)
		} else if nic, found := strings.CutPrefix(e.Key, "nic/"); found {
			nics[nic] = string(e.Value)
		}
	}
	t.Logf("%d NICs have addresses", len(nics))
	if len(addresses) != len(nics) || len(nics) == 0 {
		t.Errorf("%d addresses for %d NICs", len(addresses), len(nics))
	}
	for nic, address := range nics {
		if addresses[address] != nic {
			t.Errorf("%s has %s, which is %q's", nic, address, addresses[address])
		}
	}
}

// allocate gives a new NIC a random free address, or removes a NIC.
func allocate(s *Store, rnd *rand.Rand, who, n int) {
	const room = 200
	if list, _, _ := s.List("nic/"); len(list) > room/2 || len(list) > 0 && rnd.IntN(3) == 0 {
		e := list[rnd.IntN(len(list))]
		address := s.etcd.copy.Get("alloc/" + string(e.Value))
		s.Commit([]store.Condition{{Key: e.Key, Revision: e.Revision}, {Key: address.Key, Revision: address.Revision}},
			[]store.Write{del(e.Key), del("alloc/" + string(e.Value))})
		return
	}
	address, nic := fmt.Sprint(rnd.IntN(room)), fmt.Sprintf("%d.%d", who, n)
	s.Commit([]store.Condition{{Key: "alloc/" + address}, {Key: "nic/" + nic}}, []store.Write{put("alloc/"+address, nic), put("nic/"+nic, address)})
}
