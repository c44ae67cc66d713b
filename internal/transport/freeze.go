package transport

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"vrdma/internal/ib"
)

// frozenMagic begins every frozen queue pair; its last byte is the version.
const frozenMagic = "vrdma-qp\x04"

// parts are the pieces of a queue pair, all of fixed size and with exported fields
// only, which is what encoding/binary wants.
func (q *QP) parts() []any {
	return []any{&q.conf, &q.attr, &q.path, &q.state, &q.req, &q.resp, &q.cc, &q.pace, &q.count}
}

// Freeze writes the whole state of q to bytes. It may be called between any two calls
// of q's other methods; the queue pair must then not be used any more.
func (q *QP) Freeze() []byte {
	b := []byte(frozenMagic)
	c := *q
	c.resp.Episode = 0 // the stash stays behind
	for _, p := range c.parts() {
		var err error
		if b, err = binary.Append(b, binary.LittleEndian, p); err != nil {
			panic("transport: state of a queue pair is not plain data: " + err.Error())
		}
	}
	return b
}

// Thaw brings a frozen queue pair back.
func Thaw(b []byte) (QP, error) {
	var q QP
	rest, ok := bytes.CutPrefix(b, []byte(frozenMagic))
	if !ok {
		return QP{}, fmt.Errorf("thaw queue pair: not a frozen queue pair of this version (%d bytes)", len(b))
	}
	for _, p := range q.parts() {
		n, err := binary.Decode(rest, binary.LittleEndian, p)
		if err != nil {
			return QP{}, fmt.Errorf("thaw queue pair: %d bytes end within %T: %w", len(b), p, err)
		}
		rest = rest[n:]
	}
	if len(rest) != 0 {
		return QP{}, fmt.Errorf("thaw queue pair: %d bytes too many", len(rest))
	}
	return q, q.check()
}

// check refuses a state that would make the code reach outside its arrays.
func (q *QP) check() error {
	rs := &q.resp
	n := q.attr.MaxDestRDAtomic
	switch {
	case q.conf.Type < ib.RC || q.conf.Type > ib.UD || q.state > ib.StateError:
		return fmt.Errorf("thaw queue pair: type %d, state %d do not exist", q.conf.Type, q.state)
	case q.attr.MTU < 256 || q.attr.MTU > 4096 || q.conf.MaxBurst == 0 || q.conf.Window == 0 || q.conf.Window >= ib.PSNHalf:
		return fmt.Errorf("thaw queue pair: MTU %d, burst %d or window %d out of range", q.attr.MTU, q.conf.MaxBurst, q.conf.Window)
	case q.req.Window == 0 || q.req.Window >= ib.PSNHalf || q.req.Burst < q.attr.MTU || q.req.Chunk == 0:
		return fmt.Errorf("thaw queue pair: requester with burst %d, window %d, pieces of %d packets", q.req.Burst, q.req.Window, q.req.Chunk)
	case n > MaxResources || rs.Pending > n || max(rs.Next, rs.Head) >= max(n, 1):
		return fmt.Errorf("thaw queue pair: %d responder resources, %d pending from %d, head %d", n, rs.Pending, rs.Next, rs.Head)
	case q.psns()&^ib.PSNMask != 0:
		return fmt.Errorf("thaw queue pair: a sequence number has more than 24 bits")
	case q.cc.Spread && q.cc.Cwnd == 0:
		return fmt.Errorf("thaw queue pair: a window of nothing")
	case int(q.req.NumGaps) > len(q.req.Gaps) || q.req.Repairing && q.req.NumGaps == 0:
		return fmt.Errorf("thaw queue pair: %d gaps to repair", q.req.NumGaps)
	case int(q.req.NumHoles) > len(q.req.Holes) || q.req.NumSeen > seenMost:
		return fmt.Errorf("thaw queue pair: %d holes to ask for, %d packets seen", q.req.NumHoles, q.req.NumSeen)
	case q.req.W.NumSGE > MaxSGE || rs.R.NumSGE > MaxSGE:
		return fmt.Errorf("thaw queue pair: %d and %d scatter/gather entries, at most %d", q.req.W.NumSGE, rs.R.NumSGE, MaxSGE)
	}
	return nil
}

// psns has every bit that some sequence number has.
func (q *QP) psns() uint32 {
	r, rs := &q.req, &q.resp
	all := r.TailPSN | r.Una | r.PSN | r.Max | r.Arrived | r.SeenEnd | r.ResumePSN | rs.PSN | rs.AckPSN | rs.MsgPSN | rs.Newest
	for _, g := range r.Holes {
		all |= g.From | g.To
	}
	for _, g := range r.Gaps {
		all |= g.From | g.To
	}
	return all
}
