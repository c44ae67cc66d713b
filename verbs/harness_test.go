package verbs_test

import (
	"context"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/testkit/testdaemon"
	"vrdma.dev/vrdma/verbs"
)

// patience is the time limit of a test for an expected event.
const patience = time.Minute

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// An end is one side of a connection.
type end struct {
	t   testing.TB
	dev *verbs.Device
	pd  *verbs.PD
	cq  *verbs.CQ
	qp  *verbs.QP
	mr  *verbs.MR
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func openDevice(t testing.TB, socket string) *verbs.Device {
	t.Helper()
	dev := must[*verbs.Device](t)(verbs.Options{Socket: socket}.Open(testContext(t)))
	t.Cleanup(func() { dev.Close() })
	return dev
}

func newEnd(t testing.TB, socket string, c verbs.QPConfig) *end {
	t.Helper()
	e := &end{t: t, dev: openDevice(t, socket)}
	e.pd = must[*verbs.PD](t)(e.dev.AllocPD())
	e.cq = must[*verbs.CQ](t)(e.dev.CreateCQ(256))
	c.SendCQ = e.cq
	e.qp = must[*verbs.QP](t)(e.pd.CreateQP(c))
	e.mr = must[*verbs.MR](t)(e.pd.Alloc(1<<20, verbs.RemoteAll))
	return e
}

// pair returns two connected ends.
func pair(t testing.TB, c verbs.QPConfig) (a, b *end) {
	t.Helper()
	return pairAt(t, testdaemon.Start(t), c)
}

func pairAt(t testing.TB, socket string, c verbs.QPConfig) (a, b *end) {
	t.Helper()
	a, b = newEnd(t, socket, c), newEnd(t, socket, c)
	connect(t, a.qp, b.qp)
	return a, b
}

func connect(t testing.TB, a, b *verbs.QP) {
	t.Helper()
	to, from := must[verbs.Address](t)(a.Address()), must[verbs.Address](t)(b.Address())
	if err := a.Connect(from); err != nil {
		t.Fatal(err)
	}
	if err := b.Connect(to); err != nil {
		t.Fatal(err)
	}
}

// next waits for one successful completion.
func (e *end) next() verbs.WC {
	e.t.Helper()
	wc := e.any()
	if err := wc.Err(); err != nil {
		e.t.Fatalf("work request %d: %v", wc.ID, err)
	}
	return wc
}

// any waits for one completion.
func (e *end) any() verbs.WC {
	e.t.Helper()
	var wc [1]verbs.WC
	if _, err := e.cq.Next(testContext(e.t), wc[:]); err != nil {
		e.t.Fatal(err)
	}
	return wc[0]
}

func (e *end) post(wr verbs.SendWR) {
	e.t.Helper()
	wr.Flags |= verbs.Signaled
	if err := e.qp.PostSend(&wr); err != nil {
		e.t.Fatal(err)
	}
}

func (e *end) recv(id uint64, off, n int) {
	e.t.Helper()
	if err := e.qp.PostRecv(&verbs.RecvWR{ID: id, SGL: []verbs.SGE{e.mr.Slice(off, n)}}); err != nil {
		e.t.Fatal(err)
	}
}
