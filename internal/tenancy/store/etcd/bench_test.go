package etcd

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/tenancy/store"
	"vrdma.dev/vrdma/test/etcdtest"
)

// BenchmarkVisible measures the time from the commit of one client to the event in a watch of another, with three
// members.
func BenchmarkVisible(b *testing.B) {
	c := etcdtest.Start(b, 3)
	s, other := open(b, c, "s"), open(b, c, "s")
	w := other.Watch("", 0)
	var took []time.Duration
	for i := 0; b.Loop(); i++ {
		begin := time.Now()
		seen := make(chan time.Duration)
		go func() {
			w.Next(b.Context())
			seen <- time.Since(begin)
		}()
		commit(b, s, put("policy", fmt.Sprint(i)))
		took = append(took, <-seen)
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}

// nics are entries of n NICs with an address each, as package control writes them.
func nics(n int) (writes []store.Write) {
	for i := range n {
		writes = append(writes,
			put(fmt.Sprintf("spec/nic/t%02d/net/nic%05d", i%100, i), fmt.Sprintf(`{"schema":1,"apiVersion":"vrdma.io/v1","kind":"NIC","metadata":{"name":"nic%05d","tenant":"t%02d"},"spec":{"network":"net","addresses":["10.%d.%d.%d"]}}`, i, i%100, i%100, i/256, i%256)),
			put(fmt.Sprintf("alloc/addr/t%02d/net/%08x", i%100, i), fmt.Sprintf(`{"schema":1,"to":"nic%05d"}`, i)))
	}
	return writes
}

// BenchmarkOpen measures how long a daemon takes to have 10 000 NICs.
func BenchmarkOpen(b *testing.B) {
	c := etcdtest.Start(b, 3)
	commit(b, open(b, c, "s"), nics(10000)...)
	for b.Loop() {
		s := open(b, c, "s")
		list, _, err := s.List("")
		if err != nil || len(list) != 20000 {
			b.Fatal(len(list), err)
		}
		s.Close()
	}
}

// BenchmarkLarge measures a commit of 10 000 NICs.
func BenchmarkLarge(b *testing.B) {
	c := etcdtest.Start(b, 3)
	s := open(b, c, "s")
	writes := nics(10000)
	for b.Loop() {
		commit(b, s, writes...)
	}
}
