package transport

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"vrdma.dev/vrdma/internal/ib"
)

// The frozen form of a queue pair is
//
//	"vrdma-qp" │ version, 1 byte │ the parts of the state, little endian, in the order of parts
//
// Adding, removing or moving a field of the parts requires a new version.
const (
	frozenMagic   = "vrdma-qp"
	frozenVersion = 6
)

// frozenNever encodes a time that is zero: never, or not yet.
const frozenNever = ib.Time(math.MinInt64)

// parts returns the parts of a queue pair's state. They have a fixed size and only exported fields, as
// encoding/binary requires.
func (q *QP) parts() []any {
	return []any{&q.common, &q.req, &q.resp, &q.cnp}
}

// moments returns all points in time in the state of a queue pair, but no durations.
func (q *QP) moments() []*ib.Time {
	r, p := &q.req, &q.common.Pace
	return []*ib.Time{
		&r.Loss.RetransAt, &r.Loss.ProbeAt, &r.Loss.RNRAt, &r.Loss.BackAt,
		&r.CC.SampleAt, &r.CC.ProbeSent, &r.CC.SendAt,
		&r.Reads.HoleAt,
		&q.resp.Nak.At, &q.resp.Nak.HoleAt,
		&q.cnp.NotifiedAt,
		&p.At, &p.GrownAt, &p.SlowAt,
	}
}

// Freeze encodes the whole state of q. It may be called between any two calls of q's other methods;
// afterwards the queue pair must not be used. Points in time are encoded relative to now, because Thaw
// uses another clock.
func (q *QP) Freeze(now ib.Time) []byte {
	b := append([]byte(frozenMagic), frozenVersion)
	c := *q
	c.resp.Episode = 0 // the stash is not part of the state
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

// Thaw restores a frozen queue pair on a loop whose clock shows now. The time since Freeze does not count:
// a deadline that was a millisecond away then is a millisecond away now.
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

// thawed returns the point in time that was d after the time of freezing.
func thawed(d, now ib.Time) ib.Time {
	if d == frozenNever {
		return 0
	}
	if t := now + d; t != 0 {
		return t
	}
	return -1 // zero would mean never
}

// check rejects a state that would cause accesses outside of arrays.
func (q *QP) check() error {
	c, r, rs := &q.common, &q.req, &q.resp
	n := c.Attr.MaxDestRDAtomic
	switch {
	case c.Conf.Type < ib.RC || c.Conf.Type > ib.UD || c.State > ib.StateError:
		return fmt.Errorf("thaw queue pair: type %d, state %d do not exist", c.Conf.Type, c.State)
	case c.Attr.MTU < 256 || c.Attr.MTU > 4096 || c.Conf.MaxBurst == 0 || c.Conf.Window == 0 || c.Conf.Window >= ib.PSNHalf:
		return fmt.Errorf("thaw queue pair: MTU %d, burst %d or window %d out of range", c.Attr.MTU, c.Conf.MaxBurst, c.Conf.Window)
	case r.CC.Window == 0 || r.CC.Window >= ib.PSNHalf || c.Burst < c.Attr.MTU || r.Chunk == 0:
		return fmt.Errorf("thaw queue pair: requester with burst %d, window %d, pieces of %d packets", c.Burst, r.CC.Window, r.Chunk)
	case n > MaxResources || rs.Res.Pending > n || max(rs.Res.Next, rs.Res.Head) >= max(n, 1):
		return fmt.Errorf("thaw queue pair: %d responder resources, %d pending from %d, head %d", n, rs.Res.Pending, rs.Res.Next, rs.Res.Head)
	case q.psns()&^ib.PSNMask != 0:
		return fmt.Errorf("thaw queue pair: a sequence number has more than 24 bits")
	case r.CC.Spread && r.CC.Cwnd == 0:
		return fmt.Errorf("thaw queue pair: a window of nothing")
	case int(r.Repair.Gaps.Num) > len(r.Repair.Gaps.List) || r.Repair.Active && r.Repair.Gaps.Num == 0:
		return fmt.Errorf("thaw queue pair: %d gaps to repair", r.Repair.Gaps.Num)
	case r.Reads.Holes.Num > holesMost || r.Reads.NumSeen > seenMost:
		return fmt.Errorf("thaw queue pair: %d holes to ask for, %d packets seen", r.Reads.Holes.Num, r.Reads.NumSeen)
	case r.W.NumSGE > MaxSGE || rs.R.NumSGE > MaxSGE:
		return fmt.Errorf("thaw queue pair: %d and %d scatter/gather entries, at most %d", r.W.NumSGE, rs.R.NumSGE, MaxSGE)
	case c.Failed:
		return fmt.Errorf("thaw queue pair: frozen in the middle of a call")
	}
	return nil
}

// psns returns the bitwise OR of all sequence numbers.
func (q *QP) psns() uint32 {
	r, rs := &q.req, &q.resp
	all := r.TailPSN | r.Una | r.PSN | r.Max | r.Repair.Arrived | r.Repair.Resume.PSN | r.Reads.SeenEnd |
		rs.PSN | rs.AckPSN | rs.Msg.PSN | rs.Newest
	for _, l := range []*gapList{&r.Repair.Gaps, &r.Reads.Holes} {
		for _, g := range l.List {
			all |= g.From | g.To
		}
	}
	return all
}
