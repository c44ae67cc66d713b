package verbs_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/testkit/testdaemon"
	"vrdma.dev/vrdma/verbs"
)

// TestNothingIsLeft creates all objects repeatedly and checks that closing them, or only the device, leaves no goroutine, descriptor
// or mapping.
func TestNothingIsLeft(t *testing.T) {
	socket := testdaemon.Spawn(t)
	round := func(all bool) {
		dev := must[*verbs.Device](t)(verbs.Options{Socket: socket}.Open(t.Context()))
		pd := must[*verbs.PD](t)(dev.AllocPD())
		cq := must[*verbs.CQ](t)(dev.CreateCQ(256))
		cq.Wake()
		srq := must[*verbs.SRQ](t)(pd.CreateSRQ(16, 1))
		qp := must[*verbs.QP](t)(pd.CreateQP(verbs.QPConfig{SendCQ: cq, SRQ: srq}))
		ah := must[*verbs.AH](t)(pd.CreateAH(must[[]verbs.Entry](t)(dev.GIDs())[0].GID, verbs.GID{}))
		mw := must[*verbs.MW](t)(pd.AllocMW())
		mr := must[*verbs.MR](t)(pd.Alloc(1<<20, verbs.RemoteAll))
		mr.Bytes()[0] = 1
		list := []interface{ Close() error }{mw, ah, qp, srq, mr, cq, pd, dev}
		if !all {
			list = []interface{ Close() error }{dev, mr}
		}
		for range 2 { // closing twice is closing once
			for _, c := range list {
				if err := c.Close(); err != nil && c != list[0] {
					t.Fatalf("%T: %v", c, err)
				}
			}
		}
	}
	round(true)
	before := testdaemon.Holdings()
	before.Goroutines++ // the test's own
	before.Mappings += 4
	for i := range 60 {
		round(i%2 == 0)
	}
	testdaemon.Settles(t, before)
}

// TestMemoryIsGivenBack checks that Close frees the pages of registered memory, although their file lives on.
func TestMemoryIsGivenBack(t *testing.T) {
	dev := openDevice(t, testdaemon.Spawn(t))
	pd := must[*verbs.PD](t)(dev.AllocPD())
	held := func() (bytes int64) {
		files, _ := filepath.Glob("/proc/self/fd/*")
		for _, f := range files {
			var st unix.Stat_t
			if to, _ := os.Readlink(f); strings.HasPrefix(to, "/memfd:vrdma") && unix.Stat(f, &st) == nil {
				bytes += st.Blocks * 512
			}
		}
		return bytes
	}
	const size = 64 << 20
	before := held()
	for range 10 {
		mr := must[*verbs.MR](t)(pd.Alloc(size, verbs.LocalWrite))
		for i := 0; i < size; i += 4096 {
			mr.Bytes()[i] = 1
		}
		if now := held(); now < size {
			t.Fatalf("%d MiB are held, %d were written", now>>20, size>>20)
		}
		if err := mr.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if now := held(); now > before+size/2 {
		t.Errorf("%d MiB are held, %d before", now>>20, before>>20)
	}
}

// TestNoAllocations checks that posting and polling never allocate.
func TestNoAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	socket := testdaemon.Spawn(t)
	a, b := pairAt(t, socket, verbs.QPConfig{MaxInline: 64, MaxSendSGE: 2})
	srq := must[*verbs.SRQ](t)(b.pd.CreateSRQ(64, 1))
	to := verbs.SendWR{RemoteAddr: b.mr.Addr(0), RKey: b.mr.RKey()}
	list := []verbs.SGE{a.mr.Slice(0, 8), a.mr.Slice(64, 8)}
	recv := verbs.RecvWR{SGL: []verbs.SGE{b.mr.Slice(0, 64)}}
	data := []byte("inline")
	var wc [4]verbs.WC
	await := func(cq *verbs.CQ, want int) {
		for want > 0 {
			n, err := cq.Poll(wc[:])
			if err != nil || n > 0 && wc[0].Err() != nil {
				t.Fatal(err, wc[0].Err())
			}
			want -= n
		}
	}
	batch := make([]verbs.SendWR, 2)
	post := func(wr verbs.SendWR) {
		wr.Flags = verbs.Signaled
		if err := a.qp.PostSend(&wr); err != nil {
			t.Fatal(err)
		}
		await(a.cq, 1)
	}
	for name, f := range map[string]func(){
		"write":  func() { wr := to; wr.Op, wr.SGL = verbs.Write, list; post(wr) },
		"read":   func() { wr := to; wr.Op, wr.SGL = verbs.Read, list; post(wr) },
		"atomic": func() { wr := to; wr.Op, wr.SGL = verbs.FetchAdd, list[:1]; post(wr) },
		"send": func() {
			if err := b.qp.PostRecv(&recv); err != nil {
				t.Fatal(err)
			}
			post(verbs.SendWR{Op: verbs.Send, Data: data})
			await(b.cq, 1)
		},
		"batch": func() {
			for i := range batch {
				batch[i] = to
				batch[i].Op, batch[i].SGL, batch[i].Flags = verbs.Write, list, verbs.Signaled
			}
			if _, err := a.qp.PostSends(batch); err != nil {
				t.Fatal(err)
			}
			await(a.cq, 2)
		},
		"an empty queue": func() {
			if n, err := b.cq.Poll(wc[:]); n != 0 || err != nil {
				t.Fatal(n, err)
			}
		},
		"iterating": func() {
			for range b.cq.Completions() {
				t.Fatal("a completion")
			}
		},
	} {
		if n := testing.AllocsPerRun(200, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	if n := testing.AllocsPerRun(32, func() {
		if err := srq.PostRecv(&recv); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("shared receive queue: %v allocations", n)
	}
	ud, peer := pairUDAt(t, socket)
	ah := must[*verbs.AH](t)(ud.pd.CreateAH(must[[]verbs.Entry](t)(peer.dev.GIDs())[0].GID, verbs.GID{}))
	datagram := verbs.SendWR{Op: verbs.Send, Flags: verbs.Signaled, SGL: []verbs.SGE{ud.mr.Slice(0, 8)}, AH: ah, RemoteQPN: peer.qp.QPN(), QKey: 0x1111}
	if n := testing.AllocsPerRun(200, func() {
		if err := ud.qp.PostSend(&datagram); err != nil {
			t.Fatal(err)
		}
		await(ud.cq, 1)
	}); n != 0 {
		t.Errorf("datagram: %v allocations", n)
	}
}
