package simnet

import (
	"bytes"
	"encoding/binary"
	"testing"

	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

const slot = 4 << 10 // of a message at sender and receiver

// numbered returns a message that contains its number and length.
func numbered(e *Endpoint, i, n uint32) []byte {
	b := e.Node.Bytes(Base+uint64(i)*slot, n)
	for j := range b {
		b[j] = byte(i*31 + uint32(j)*7)
	}
	if n >= 4 {
		binary.LittleEndian.PutUint32(b, i)
	}
	return b
}

// unreliable sends random messages over UC or UD. Received messages must be complete and, over UC without duplication and reordering,
// in order.
func unreliable(t *testing.T, seed uint64) {
	cfg := weather(seed)
	typ := ib.UC
	if seed%2 == 0 {
		typ = ib.UD
	} else {
		cfg.Duplicate, cfg.Reorder = 0, 0
	}
	net := New(cfg)
	const messages = 20
	mtu := uint32(256) << net.Rand.IntN(5)
	a := net.Add(NewNode(messages*slot), transport.Config{Type: typ, Num: 21, MaxBurst: mtu * (1 + net.Rand.Uint32N(4))})
	b := net.Add(NewNode(2*messages*slot), transport.Config{Type: typ, Num: 22})
	aKey := a.Node.Register(Base, messages*slot, 0)
	bKey := b.Node.Register(Base, 2*messages*slot, AllAccess)
	attr := Defaults()
	attr.MTU, attr.QKey, attr.SQPSN = mtu, 5, 1<<24-10
	a.AHs = []ib.GID{b.GID}
	if typ == ib.UD {
		net.Datagram(a, attr)
		net.Datagram(b, attr)
	} else {
		net.Connect(a, b, attr, attr)
	}
	if p := path(net); p.Remote {
		a.QP.SetPath(p)
		b.QP.SetPath(p)
	}
	a.SignalAll()
	var sent [][]byte
	for i := range uint32(messages) {
		r := transport.RecvWQE{WRID: uint64(i)}
		r.NumSGE = uint8(copy(r.SGE[:], split(net, Base+uint64(i)*slot, slot, bKey)))
		b.PostRecv(r)
		n := net.Rand.Uint32N(slot - 40)
		w := transport.SendWQE{WRID: uint64(i), Op: transport.WRSendImm, Imm: i, RemoteQPN: 22, RemoteQKey: 5}
		if typ == ib.UC && net.Rand.IntN(3) == 0 {
			w.Op, w.RemoteAddr, w.RKey = transport.WRWriteImm, Base+uint64(messages+i)*slot, bKey
		}
		sent = append(sent, numbered(a, i, n))
		w.NumSGE = uint8(copy(w.SGE[:], split(net, Base+uint64(i)*slot, n, aKey)))
		a.Post(w)
	}
	if !net.Run(net.Now+1e10, 1_000_000) {
		t.Fatalf("no end")
	}
	if len(a.Sent) != messages || a.QP.State() != ib.StateRTS || b.QP.State() != ib.StateRTS {
		t.Fatalf("%d sends completed, states %d and %d", len(a.Sent), a.QP.State(), b.QP.State())
	}
	last := -1
	for i, d := range b.Rcvd {
		at, grh := Base+uint64(i)*slot, uint32(0)
		if d.Op == transport.RecvWriteImm {
			at = Base + uint64(messages+d.Imm)*slot
		}
		if typ == ib.UD {
			grh = 40
		}
		if d.WRID != uint64(i) || d.Status != transport.Success || d.Imm >= messages || d.ByteLen != grh+uint32(len(sent[d.Imm])) {
			t.Fatalf("receive %d: %+v", i, d)
		}
		if got := b.Node.Bytes(at, d.ByteLen)[grh:]; !bytes.Equal(got, sent[d.Imm]) {
			t.Fatalf("message %d: wrong data at %d", d.Imm, differ(got, sent[d.Imm]))
		}
		if typ == ib.UC && int(d.Imm) <= last {
			t.Fatalf("message %d after %d", d.Imm, last)
		}
		last = int(d.Imm)
	}
	if net.Lost == 0 && net.Damaged == 0 && net.Duplicate == 0 && len(b.Rcvd) != messages {
		t.Fatalf("%d messages arrived, want %d: nothing was lost", len(b.Rcvd), messages)
	}
}

// TestUnreliable checks random UC and UD traffic.
func TestUnreliable(t *testing.T) { each(t, 4000, unreliable) }
