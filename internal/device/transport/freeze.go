package transport

import (
	"fmt"
	"math/bits"
	"slices"

	"vrdma.dev/vrdma/internal/ib"
)

// A QPState is the frozen form of a queue pair. It follows the rules of package state. Its parts are those of
// the QP, with a tag for each field. Rings are separate, with only the entries in use, because most queue pairs
// are idle.
//
// The values of Kind, Status, WROp, ib.State and ib.Service are part of the format.
type QPState struct {
	Common common    `cbor:"1,keyasint"`
	Req    requester `cbor:"2,keyasint"`
	Resp   responder `cbor:"3,keyasint"`
	CNP    notifier  `cbor:"4,keyasint,omitzero"`

	Sent      sentState     `cbor:"5,keyasint,omitzero"` // of started requests that are not complete
	SendList  listState     `cbor:"6,keyasint,omitzero"` // of Req.W
	RecvList  listState     `cbor:"7,keyasint,omitzero"` // of Resp.R
	Seen      []uint64      `cbor:"8,keyasint,omitempty"`
	Gaps      []uint32      `cbor:"9,keyasint,omitempty"`  // of Req.Repair, two numbers each
	Holes     []uint32      `cbor:"10,keyasint,omitempty"` // of Req.Reads
	Resources resourceState `cbor:"11,keyasint,omitzero"`
}

// The states of rings have a list for each field of an entry: a new field is a new list.

// sentState has consecutive entries of sentRequests. The last one is before requester.Started.
type sentState struct {
	WRID    []uint64 `cbor:"1,keyasint,omitempty"`
	Length  []uint32 `cbor:"2,keyasint,omitempty"`
	Packets []uint32 `cbor:"3,keyasint,omitempty"`
	Op      []uint8  `cbor:"4,keyasint,omitempty"`
	Flags   []uint8  `cbor:"5,keyasint,omitempty"`
}

// listState is a scatter/gather list.
type listState struct {
	Addr   []uint64 `cbor:"1,keyasint,omitempty"`
	Length []uint32 `cbor:"2,keyasint,omitempty"`
	LKey   []uint32 `cbor:"3,keyasint,omitempty"`
}

// resourceState has the first entries of resources.Ring, up to the last one in use.
type resourceState struct {
	Value  []uint64 `cbor:"1,keyasint,omitempty"`
	PSN    []uint32 `cbor:"2,keyasint,omitempty"`
	End    []uint32 `cbor:"3,keyasint,omitempty"`
	RKey   []uint32 `cbor:"4,keyasint,omitempty"`
	Length []uint32 `cbor:"5,keyasint,omitempty"`
	Off    []uint32 `cbor:"6,keyasint,omitempty"`
	Kind   []uint8  `cbor:"7,keyasint,omitempty"`
	Due    []uint8  `cbor:"8,keyasint,omitempty"` // progress; 0x80 is set for Again
}

const dueAgain = 0x80

// moments returns all points in time in the state of a queue pair, but no durations.
func moments(c *common, r *requester, rs *responder, n *notifier) [14]*ib.Time {
	return [...]*ib.Time{
		&r.Loss.RetransAt, &r.Loss.ProbeAt, &r.Loss.RNRAt, &r.Loss.BackAt,
		&r.CC.SampleAt, &r.CC.ProbeSent, &r.CC.SendAt,
		&r.Reads.HoleAt,
		&rs.Nak.At, &rs.Nak.HoleAt,
		&n.NotifiedAt,
		&c.Pace.At, &c.Pace.GrownAt, &c.Pace.SlowAt,
	}
}

// Freeze fills st with the state of q, which it does not change. It may be called between any two calls of q's
// other methods. Points in time are relative to now, because Thaw uses another clock. The stash is not part of the
// state: its packets count as lost.
func (q *QP) Freeze(st *QPState, now ib.Time) {
	st.Common, st.Req, st.Resp, st.CNP = q.common, q.req, q.resp, q.cnp
	r, rs := &st.Req, &st.Resp
	for _, t := range moments(&st.Common, r, rs, &st.CNP) {
		*t = t.Freeze(now)
	}
	st.SendList, st.RecvList, st.Seen = listState{}, listState{}, nil
	if r.Loaded {
		st.SendList.freeze(r.W.SGE[:r.W.NumSGE])
	} else {
		r.W = SendWQE{}
	}
	if rs.HaveRecv {
		st.RecvList.freeze(rs.R.SGE[:rs.R.NumSGE])
	} else {
		rs.R = RecvWQE{}
	}
	if r.Reads.NumSeen > 0 {
		st.Seen = slices.Clone(r.Reads.Seen[:])
	}
	st.Gaps, st.Holes = r.Repair.Gaps.freeze(), r.Reads.Holes.freeze()
	// Entries that are not in use any more have no meaning: equal states have equal encodings.
	clear(r.Repair.Gaps.List[:])
	clear(r.Reads.Holes.List[:])
	st.Sent = r.Sent.freeze(r.Tail, r.Started)
	st.Resources = rs.Res.freeze(q.common.Attr.MaxDestRDAtomic)
}

// Thaw returns the queue pair that st is the state of, on a loop whose clock shows now. The time since Freeze does
// not count: a deadline that was a millisecond away then is a millisecond away now.
func Thaw(st *QPState, now ib.Time) (QP, error) {
	q := QP{common: st.Common, req: st.Req, resp: st.Resp, cnp: st.CNP}
	r, rs := &q.req, &q.resp
	for _, t := range moments(&q.common, r, rs, &q.cnp) {
		*t = t.Thaw(now)
	}
	rs.Episode = 0
	r.Sent, rs.Res.Ring, r.Reads.Seen = sentRequests{}, [MaxResources]resource{}, seen{}
	for _, err := range [...]error{
		r.Sent.thaw(&st.Sent, r.Started), rs.Res.thaw(&st.Resources),
		st.SendList.thaw(&r.W.SGE, r.W.NumSGE), st.RecvList.thaw(&rs.R.SGE, rs.R.NumSGE),
		r.Repair.Gaps.thaw(st.Gaps), r.Reads.Holes.thaw(st.Holes), r.Reads.thawSeen(st.Seen),
		q.check(),
	} {
		if err != nil {
			return QP{}, fmt.Errorf("thaw queue pair: %w", err)
		}
	}
	return q, nil
}

// freeze returns the cached requests from tail to started: those that are started and not complete.
func (s *sentRequests) freeze(tail, started uint32) (st sentState) {
	n := min(started-tail, uint32(len(s)))
	// An entry of another position is not one of them, nor are those before it.
	first := started
	for ; n > 0 && s[(first-1)%uint32(len(s))].Pos == first-1; n-- {
		first--
	}
	for pos := first; pos != started; pos++ {
		e := &s[pos%uint32(len(s))]
		st.WRID, st.Length, st.Packets = append(st.WRID, e.WRID), append(st.Length, e.Length), append(st.Packets, e.Packets)
		st.Op, st.Flags = append(st.Op, uint8(e.Op)), append(st.Flags, e.Flags)
	}
	return st
}

// thaw restores the cached requests before started.
func (s *sentRequests) thaw(st *sentState, started uint32) error {
	n := len(st.WRID)
	if n > len(s) || len(st.Length) != n || len(st.Packets) != n || len(st.Op) != n || len(st.Flags) != n {
		return fmt.Errorf("lists of %d, %d, %d, %d and %d sent requests", n, len(st.Length), len(st.Packets), len(st.Op), len(st.Flags))
	}
	for i := range s {
		s[i].Pos = started // of no started request
	}
	for i := range st.WRID {
		pos := started - uint32(n-i)
		s[pos%uint32(len(s))] = sentRequest{
			WRID: st.WRID[i], Pos: pos, Length: st.Length[i], Packets: st.Packets[i], Op: WROp(st.Op[i]), Flags: st.Flags[i],
		}
	}
	return nil
}

func (l *listState) freeze(sge []SGE) {
	for i := range sge {
		l.Addr, l.Length, l.LKey = append(l.Addr, sge[i].Addr), append(l.Length, sge[i].Length), append(l.LKey, sge[i].LKey)
	}
}

func (l *listState) thaw(sge *[MaxSGE]SGE, n uint8) error {
	if int(n) != len(l.Addr) || n > MaxSGE || len(l.Length) != len(l.Addr) || len(l.LKey) != len(l.Addr) {
		return fmt.Errorf("%d scatter/gather entries, and lists of %d, %d and %d", n, len(l.Addr), len(l.Length), len(l.LKey))
	}
	*sge = [MaxSGE]SGE{}
	for i := range l.Addr {
		sge[i] = SGE{Addr: l.Addr[i], Length: l.Length[i], LKey: l.LKey[i]}
	}
	return nil
}

func (l *gapList) freeze() (out []uint32) {
	for _, g := range l.List[:l.Num] {
		out = append(out, g.From, g.To)
	}
	return out
}

func (l *gapList) thaw(from []uint32) error {
	*l = gapList{}
	if len(from)%2 != 0 || len(from)/2 > len(l.List) {
		return fmt.Errorf("%d borders of gaps", len(from))
	}
	for i := 0; i < len(from); i += 2 {
		l.add(from[i], from[i+1])
	}
	return nil
}

func (a *reassembly) thawSeen(from []uint64) error {
	if len(from) != len(a.Seen) && len(from) != 0 {
		return fmt.Errorf("%d words of packets seen, want %d", len(from), len(a.Seen))
	}
	n := copy(a.Seen[:], from)
	set := 0
	for _, w := range a.Seen[:n] {
		set += bits.OnesCount64(w)
	}
	if uint32(set) != a.NumSeen {
		return fmt.Errorf("%d packets seen of %d", set, a.NumSeen)
	}
	return nil
}

// freeze returns the first n resources, up to the last one in use.
func (s *resources) freeze(n uint8) (st resourceState) {
	for n = min(n, MaxResources); n > 0 && s.Ring[n-1].Kind == 0; n-- {
	}
	if n == 0 {
		return st
	}
	st = resourceState{
		Value: make([]uint64, n), PSN: make([]uint32, n), End: make([]uint32, n), RKey: make([]uint32, n), Length: make([]uint32, n),
		Off: make([]uint32, n), Kind: make([]uint8, n), Due: make([]uint8, n),
	}
	for i := range n {
		e := &s.Ring[i]
		st.Value[i], st.PSN[i], st.End[i], st.RKey[i], st.Length[i], st.Off[i] = e.Value, e.PSN, e.End, e.RKey, e.Length, e.Off
		st.Kind[i], st.Due[i] = uint8(e.Kind), uint8(e.Due)
		if e.Again {
			st.Due[i] |= dueAgain
		}
	}
	return st
}

func (s *resources) thaw(st *resourceState) error {
	n := len(st.Kind)
	for _, k := range [...]int{len(st.Value), len(st.PSN), len(st.End), len(st.RKey), len(st.Length), len(st.Off), len(st.Due)} {
		if k != n || n > MaxResources {
			return fmt.Errorf("lists of %d and %d responder resources", n, k)
		}
	}
	for i := range st.Kind {
		s.Ring[i] = resource{
			Value: st.Value[i], PSN: st.PSN[i], End: st.End[i], RKey: st.RKey[i], Length: st.Length[i], Off: st.Off[i],
			Kind: Kind(st.Kind[i]), Due: due(st.Due[i] &^ dueAgain), Again: st.Due[i]&dueAgain != 0,
		}
	}
	return nil
}

// check rejects a state that would cause accesses outside of arrays, or calls without an end.
func (q *QP) check() error {
	c, r, rs := &q.common, &q.req, &q.resp
	n := c.Attr.MaxDestRDAtomic
	switch {
	case c.Conf.Type < ib.RC || c.Conf.Type > ib.UD || c.State > ib.StateError:
		return fmt.Errorf("type %d, state %d do not exist", c.Conf.Type, c.State)
	case c.Attr.MTU < 256 || c.Attr.MTU > 4096 || c.Conf.MaxBurst == 0 || c.Conf.Window == 0 || c.Conf.Window >= ib.PSNHalf:
		return fmt.Errorf("MTU %d, burst %d or window %d out of range", c.Attr.MTU, c.Conf.MaxBurst, c.Conf.Window)
	case r.CC.Window == 0 || r.CC.Window >= ib.PSNHalf || c.Burst < c.Attr.MTU || r.Chunk == 0:
		return fmt.Errorf("requester with burst %d, window %d, pieces of %d packets", c.Burst, r.CC.Window, r.Chunk)
	case n > MaxResources || rs.Res.Pending > n || max(rs.Res.Next, rs.Res.Head) >= max(n, 1):
		return fmt.Errorf("%d responder resources, %d pending from %d, head %d", n, rs.Res.Pending, rs.Res.Next, rs.Res.Head)
	case q.psns()&^ib.PSNMask != 0:
		return fmt.Errorf("a sequence number has more than 24 bits")
	case (r.CC.Spread || c.Path.Remote) && r.CC.Cwnd == 0:
		return fmt.Errorf("a window of nothing")
	case r.Repair.Active && r.Repair.Gaps.Num == 0:
		return fmt.Errorf("a repair without a gap")
	case r.Reads.Holes.Num > holesMost || r.Reads.NumSeen > seenMost:
		return fmt.Errorf("%d holes to ask for, %d packets seen", r.Reads.Holes.Num, r.Reads.NumSeen)
	case r.Started-r.Tail > 1<<31:
		return fmt.Errorf("requests %d to %d", r.Tail, r.Started)
	case c.Failed:
		return fmt.Errorf("frozen in the middle of a call")
	}
	return rs.Res.check(n)
}

// check rejects resources of which fewer are pending than Pending says. More may be: a queue pair in the state Error
// does not answer them.
func (s *resources) check(n uint8) error {
	pending := 0
	for i := range s.Ring {
		e := &s.Ring[i]
		switch {
		case i >= int(n) && *e != resource{}:
			return fmt.Errorf("responder resource %d of %d", i, n)
		case e.Due > dueStarted || e.Kind > KindFlush:
			return fmt.Errorf("a responder resource of kind %d, progress %d", e.Kind, e.Due)
		case e.Due != dueNo:
			pending++
		}
	}
	if pending < int(s.Pending) {
		return fmt.Errorf("%d of %d responder resources are pending", pending, s.Pending)
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
	for i := range rs.Res.Ring {
		all |= rs.Res.Ring[i].PSN
	}
	return all
}
