package transport

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"vrdma/internal/ib"
)

// The frozen form of a queue pair is
//
//	"vrdma-qp" │ version, 1 byte │ the parts of the state, little endian, in the order of parts
//
// Every field that the parts gain, lose or move needs a new version.
const (
	frozenMagic   = "vrdma-qp"
	frozenVersion = 5
)

// frozenNever stands for a moment that is zero: never, or not yet.
const frozenNever = ib.Time(math.MinInt64)

// parts are the pieces of a queue pair, all of fixed size and with exported fields
// only, which is what encoding/binary wants.
func (q *QP) parts() []any {
	return []any{&q.conf, &q.attr, &q.path, &q.state, &q.req, &q.resp, &q.cc, &q.pace, &q.count}
}

// moments are all the times in the state of a queue pair that are read off a clock, as
// opposed to those that say how long something takes.
func (q *QP) moments() []*ib.Time {
	r, rs, c, p := &q.req, &q.resp, &q.cc, &q.pace
	return []*ib.Time{
		&r.RetransAt, &r.ProbeAt, &r.RNRAt, &r.HoleAt,
		&rs.NakAt, &rs.HoleAt,
		&c.SampleAt, &c.ProbeSent, &c.BackAt, &c.SendAt, &c.NotifiedAt,
		&p.At, &p.GrownAt, &p.SlowAt,
	}
}

// Freeze writes the whole state of q to bytes. It may be called between any two calls
// of q's other methods; the queue pair must then not be used any more. Moments are
// written as their distance from now, since whoever thaws has another clock.
func (q *QP) Freeze(now ib.Time) []byte {
	b := append([]byte(frozenMagic), frozenVersion)
	c := *q
	c.resp.Episode = 0 // the stash stays behind
	for _, t := range c.moments() {
		if *t == 0 {
			*t = frozenNever
		} else {
			*t -= now
		}
	}
	for _, p := range c.parts() {
		var err error
		if b, err = binary.Append(b, binary.LittleEndian, p); err != nil {
			panic("transport: state of a queue pair is not plain data: " + err.Error())
		}
	}
	return b
}

// Thaw brings a frozen queue pair back, on a loop whose clock shows now. The time that
// has passed since it was frozen does not count: what was due in a millisecond then is due
// in a millisecond now.
func Thaw(b []byte, now ib.Time) (QP, error) {
	var q QP
	rest, ok := bytes.CutPrefix(b, []byte(frozenMagic))
	if !ok || len(rest) == 0 {
		return QP{}, fmt.Errorf("thaw queue pair: %d bytes are not a frozen queue pair", len(b))
	}
	if v := rest[0]; v != frozenVersion {
		return QP{}, fmt.Errorf("thaw queue pair: frozen in the form of version %d, this vrdma reads version %d; freeze and thaw with the same vrdma", v, frozenVersion)
	}
	rest = rest[1:]
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
	for _, t := range q.moments() {
		*t = thawed(*t, now)
	}
	return q, q.check()
}

// thawed is the moment that was d away from the time of freezing.
func thawed(d, now ib.Time) ib.Time {
	if d == frozenNever {
		return 0
	}
	if t := now + d; t != 0 {
		return t
	}
	return -1 // zero would be never
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
