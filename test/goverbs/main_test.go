// Package goverbs tests package verbs with programs that we did not write: rping of librdmacm, and
// curl and python over rsockets.
package goverbs

import (
	"context"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/verbs"
	"vrdma.dev/vrdma/verbs/cm"
)

const minute = time.Minute

func TestMain(m *testing.M) { harness.Main(m) }

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), minute)
	t.Cleanup(cancel)
	return ctx
}

// longContext is for tests with many steps.
func longContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*minute)
	t.Cleanup(cancel)
	return ctx
}

// A program is a Go program with a device and a buffer.
type program struct {
	dev *verbs.Device
	pd  *verbs.PD
	cq  *verbs.CQ
	mr  *verbs.MR
	m   *cm.Manager
	c   *cm.Conn
}

// Offsets in the program's buffer.
const (
	inAt, outAt = 0, 64 // rping's messages: the address of a buffer
	dataAt      = 4096
	infoSize    = 16
)

func newProgram(t testing.TB, socket string) *program {
	t.Helper()
	p := &program{}
	var err error
	if p.dev, err = (verbs.Options{Socket: socket}).Open(testContext(t)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.dev.Close(); p.mr.Close() })
	var errs [4]error
	p.pd, errs[0] = p.dev.AllocPD()
	p.cq, errs[1] = p.dev.CreateCQ(64)
	p.mr, errs[2] = p.pd.Alloc(1<<16, verbs.RemoteAll)
	p.m, errs[3] = cm.New(p.dev)
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.m.Close() })
	return p
}

// config is the configuration of a connection that expects rping's first message.
func (p *program) config() cm.Config {
	return cm.Config{PD: p.pd, QP: verbs.QPConfig{SendCQ: p.cq}, Prepare: p.expect}
}

func (p *program) expect(q *verbs.QP) error {
	return q.PostRecv(&verbs.RecvWR{ID: 1, SGL: []verbs.SGE{p.mr.Slice(inAt, infoSize)}})
}

// tell sends the address of a buffer, as rping does.
func (p *program) tell(t testing.TB, n int) {
	t.Helper()
	b := p.mr.Bytes()[outAt:]
	binary.BigEndian.PutUint64(b, p.mr.Addr(dataAt))
	binary.BigEndian.PutUint32(b[8:], p.mr.RKey())
	binary.BigEndian.PutUint32(b[12:], uint32(n))
	p.do(t, verbs.SendWR{Op: verbs.Send, SGL: []verbs.SGE{p.mr.Slice(outAt, infoSize)}})
}

// do posts a request and waits for its completion.
func (p *program) do(t testing.TB, wr verbs.SendWR) {
	t.Helper()
	wr.ID, wr.Flags = 2, verbs.Signaled
	if err := p.c.QP().PostSend(&wr); err != nil {
		t.Fatal(err)
	}
	p.await(t, 2)
}

// await waits for the completion of a request, and notes a receive that completes before it.
func (p *program) await(t testing.TB, id uint64) {
	t.Helper()
	for range 2 {
		var wc [1]verbs.WC
		if received && id == 1 {
			received = false
			return
		}
		if _, err := p.cq.Next(testContext(t), wc[:]); err != nil {
			t.Fatal(err)
		}
		if err := wc[0].Err(); err != nil {
			t.Fatal(err)
		}
		if wc[0].ID == id {
			return
		}
		received = wc[0].ID == 1
	}
	t.Fatalf("no completion of %d", id)
}

// received notes that a message came during another wait. Tests run one after the other.
var received bool

// heard waits for a message with the address of the peer's buffer.
func (p *program) heard(t testing.TB) (addr uint64, key, n uint32) {
	t.Helper()
	p.await(t, 1)
	b := p.mr.Bytes()[inAt:]
	addr, key, n = binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])
	if err := p.expect(p.c.QP()); err != nil {
		t.Fatal(err)
	}
	return addr, key, n
}
