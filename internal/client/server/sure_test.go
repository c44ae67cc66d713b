package server

import (
	"encoding/binary"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/client/protocol"
)

// doorbellPage is the page through which m sees which commands are sure.
func doorbellPage(t *testing.T, m *mailer) []byte {
	t.Helper()
	page, err := unix.Mmap(int(m.dev.Files[0].Fd()), 0, protocol.DoorbellSize, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(page) })
	return page
}

// sureFor reports whether the command is sure for a queue pair.
func sureFor(page []byte, handle uint32) bool {
	return page[protocol.SureBits+handle/8]>>(handle%8)&1 != 0
}

// sureCommand is one that page describes, with anything where it says nothing.
func sureCommand(page []byte, handle uint32) []byte {
	b := make([]byte, u32(page, protocol.SureLength))
	for i := range b {
		b[i] = page[protocol.SureValue+i] | byte(rand.Uint32())&^page[protocol.SureMask+i]
	}
	binary.NativeEndian.PutUint32(b[u32(page, protocol.SureHandleAt):], handle)
	return b
}

func (m *mailer) stored(command []byte) []byte {
	m.t.Helper()
	r := m.send(command)
	if r.Error != 0 || len(r.Stores) != 1 {
		m.t.Fatalf("command %#x: %v, %d answers", u32(command, 0), syscall.Errno(r.Error), len(r.Stores))
	}
	return append([]byte(nil), r.Stores[0].Data...)
}

func (m *mailer) state(qp uint32) uint8 {
	m.t.Helper()
	var resp abi.QueryQPResp
	abi.Decode(m.stored(legacy(abi.CmdQueryQP, &abi.QueryQP{Response: respAddr, QPHandle: qp}, nil, abi.Size[abi.QueryQPResp]())), &resp)
	return resp.QPState
}

// newQP makes a queue pair of a type.
func (m *mailer) newQP(typ uint8) uint32 {
	m.t.Helper()
	pd := u32(m.stored(legacy(abi.CmdAllocPD, &abi.AllocPD{Response: respAddr}, nil, 4)), 0)
	cq := u32(m.stored(legacy(abi.CmdCreateCQ, &abi.CreateCQ{Response: respAddr, CQE: 10, CompChannel: -1}, nil, 24)), 0)
	q := qpRequest(pd, cq)
	q.QPType = typ
	return u32(m.stored(legacy(abi.CmdCreateQP, q, nil, 64)), 0)
}

func (m *mailer) modify(qp uint32, state uint8, want syscall.Errno) {
	m.t.Helper()
	m.ends(legacy(abi.CmdModifyQP, &abi.ModifyQP{QPHandle: qp, AttrMask: abi.QPMaskState, QPState: state}, nil, 0), want)
}

// What is described as sure succeeds, whatever else is in the command; and it is described as long as
// it is so.
func TestSure(t *testing.T) {
	s := testServer(t)
	m := newMailer(t, s, protocol.KindUverbs)
	page := doorbellPage(t, m)
	for _, typ := range []uint8{abi.QPTypeRC, abi.QPTypeUC} {
		qp := m.newQP(typ)
		for range 30 {
			if !sureFor(page, qp) {
				t.Fatalf("type %d: not sure in state %d", typ, m.state(qp))
			}
			m.ends(sureCommand(page, qp), 0)
			if rand.IntN(4) == 0 {
				m.modify(qp, abi.QPStateReset, 0)
			}
		}
		m.ends(sureCommand(page, qp), 0)
		m.modify(qp, abi.QPStateErr, 0)
		if sureFor(page, qp) {
			t.Error("sure in the error state")
		}
		m.ends(sureCommand(page, qp), syscall.EINVAL)
		m.modify(qp, abi.QPStateReset, 0)
		if !sureFor(page, qp) {
			t.Error("not sure after a reset")
		}
		m.stored(legacy(abi.CmdDestroyQP, &abi.DestroyQP{Response: respAddr, QPHandle: qp}, nil, 4))
		if sureFor(page, qp) {
			t.Error("sure for a queue pair that is gone")
		}
	}
	if qp := m.newQP(abi.QPTypeUD); sureFor(page, qp) {
		t.Error("sure for a UD queue pair, which needs a key")
	}
}

// A sure command that is left in the mailbox has happened before the next command, and soon also
// without one. What else is left there harms nobody.
func TestLeft(t *testing.T) {
	s := testServer(t)
	m := newMailer(t, s, protocol.KindUverbs)
	page := doorbellPage(t, m)
	m.give()
	leave := func(command []byte) {
		t.Helper()
		for m.began = time.Now(); m.patient(); {
			if m.mail.Leave(command) {
				return
			}
			m.ends(portCommand(1), 0) // which opens the mailbox
		}
		t.Fatal("the mailbox is never open")
	}
	for range 8 {
		qp := m.newQP(abi.QPTypeRC)
		leave(sureCommand(page, qp))
		if state := m.state(qp); state != abi.QPStateInit {
			t.Fatalf("state %d after the next command, want INIT", state)
		}
		m.modify(qp, abi.QPStateReset, 0)
		leave(sureCommand(page, qp))
		eventually(t, "nobody takes what was left", func() bool { return !m.mail.Left() })
		if state := m.state(qp); state != abi.QPStateInit {
			t.Fatalf("state %d, want INIT", state)
		}
	}
	for range 12 {
		b := make([]byte, 8*(1+rand.IntN(40)))
		for i := range b {
			b[i] = byte(rand.Uint32())
		}
		copy(b, [][]byte{nil, portCommand(1), sureCommand(page, rand.Uint32N(1<<20)), {26, 0, 0, 0, 0, 0}, {26, 0, 0, 0, 0xff, 0xff}}[rand.IntN(5)])
		leave(b)
		m.ends(portCommand(1), 0)
	}
}
