package transport

import "vrdma.dev/vrdma/internal/ib"

// requester is the sending half of a queue pair. Its work requests stand in the
// application's ring and are fetched when they are needed, again if they have to be
// sent again:
//
//	      Tail              Pos         Started
//	───────┬─────────────────┬─────────────┬──────────▶ positions
//	 done  │ sent, not acked │ to be sent  │ not yet
//	       │                 │   again     │ looked at
//	───────┴──────┬──────────┴──────┬──────┴──────────▶ PSNs
//	   TailPSN   Una               PSN    Max
//
// Without loss Pos equals Started (or is the one message in the making) and PSN
// equals Max. UC and UD complete a request when its last packet has been sent.
//
// Where to find what it does:
//
//	requester.go   which request is next, and whether it may be sent
//	sending.go     making bursts of it (UD: unreliable.go)
//	flow.go        how much may be sent now
//	response.go    what the responder answers
//	completion.go  the end of requests, good or bad
//	recovery.go    timers, retries, probes: sending again from the oldest packet on
//	repair.go      sending again only what one of our own hosts misses
//	reassembly.go  asking again only for the READ data that has not come
//
// It touches its own fields and, of what it shares with the responder, what common says.
type requester struct {
	Tail    uint32 // oldest work request that is not completed
	Pos     uint32 // the work request to send from
	Started uint32 // positions before it have been begun at least once
	TailPSN uint32 // PSN of Tail's first packet
	Una     uint32 // oldest PSN not acknowledged
	PSN     uint32 // next PSN to send
	Max     uint32 // one past the highest PSN ever sent
	Off     uint32 // bytes of W sent in this pass
	Unasked uint32 // packets since the last one that asked for an ACK
	RDOut   uint32 // READs and atomics sent in this pass and not answered
	Chunk   uint32 // packets of a READ that are asked for at once

	FailPos    uint32 // this request cannot be sent:
	FailStatus Status // it fails when its turn to complete comes

	Loaded  bool // W is the request at Pos
	Blocked bool // run stopped although there is work: window, fence or depth
	Kick    bool // run has something to do
	Drained bool // SQD has been reached

	W      SendWQE
	Sent   sentRequests
	Loss   recovery
	Repair repair
	Reads  reassembly
	CC     congestion
}

// sentRequests remembers the newest requests that were begun, so that completing them needs
// no second look into the application's ring.
type sentRequests [64]sentRequest

// sentRequest is what completing a request needs to know of it.
type sentRequest struct {
	WRID    uint64
	Pos     uint32
	Length  uint32
	Packets uint32
	Op      WROp
	Flags   uint8
}

// note remembers the request at pos, which has so many packets.
func (s *sentRequests) note(pos uint32, w *SendWQE, packets uint32) {
	s[pos%uint32(len(s))] = sentRequest{
		WRID: w.WRID, Pos: pos, Length: w.Length, Packets: packets, Op: w.Op, Flags: w.Flags,
	}
}

// find brings what is remembered of the request at pos into w.
func (s *sentRequests) find(pos uint32, w *SendWQE) (packets uint32, ok bool) {
	q := &s[pos%uint32(len(s))]
	if q.Pos != pos {
		return 0, false
	}
	w.Pos, w.WRID, w.Op, w.Flags, w.Length = q.Pos, q.WRID, q.Op, q.Flags, q.Length
	w.NumSGE = 0
	return q.Packets, true
}

// minCost is what a message costs at least of the budget of Run and Respond: about
// the time that copying so many bytes takes.
const minCost = 256

// run sends what may be sent, about budget bytes of payload at most, and reports
// whether there is more to do at once.
func (r *requester) run(c *reqCall, budget int) (more bool) {
	r.Kick = false
	switch c.State {
	case ib.StateRTS, ib.StateSQD:
	case ib.StateError, ib.StateSQE:
		return r.flush(c)
	default:
		return false
	}
	if r.Loss.RNRAt != 0 {
		if c.now < r.Loss.RNRAt {
			return false
		}
		r.Loss.RNRAt = 0
	}
	r.Blocked = false
	r.CC.takeShare(c.common, c.sc.Share)
	c.sc.Extra = 0
	for budget > c.sc.Extra {
		n := r.step(c, budget)
		if n == 0 || c.sc.Held {
			return false
		}
		budget -= n
	}
	return c.running()
}

// step sends one burst or performs one local operation. It returns its cost, zero if
// there was nothing to do.
func (r *requester) step(c *reqCall, budget int) int {
	if r.Repair.Gaps.Num > 0 && !r.repair(c) {
		return 0
	}
	if r.Reads.Holes.Num > 0 {
		return r.sendHole(c)
	}
	if r.FailStatus != Success && r.Pos == r.FailPos {
		return 0
	}
	if !r.Loaded && !r.load(c) {
		return 0
	}
	w := &r.W
	if r.Repair.Active && w.Op.isRD() {
		// The gap reaches into it. Sent again both here and after resuming, it would
		// count as two.
		r.rewind()
		return minCost
	}
	if r.Off == 0 && !r.admit(c) {
		return 0
	}
	if w.Op.isLocal() {
		return r.local(c)
	}
	if c.Conf.Type == ib.RC {
		if !r.fits(c) {
			r.Blocked = true
			return 0
		}
	} else if c.Path.Remote && c.Pace.hold(c.now) {
		return 0
	}
	switch {
	case c.Conf.Type == ib.UD:
		return r.sendDatagram(c)
	case w.Op.isRD():
		if w.Op == WRRead && c.sc.HoldReads {
			c.sc.ReadHeld = true
			return 0
		}
		return r.sendRD(c)
	}
	return r.sendData(c, budget)
}

// load brings the request at Pos into W and finds out where in it to go on.
func (r *requester) load(c *reqCall) bool {
	if c.State == ib.StateSQD && r.Pos == r.Started {
		return false
	}
	if !c.h.FetchSend(r.Pos, &r.W) {
		return false
	}
	r.Loaded = true
	r.Off = 0
	if r.Pos == r.Tail {
		r.Off = ib.PSNDist(r.TailPSN, r.PSN) * c.Attr.MTU
	}
	return r.Off == 0 || r.unchanged(c)
}

// unchanged looks at a request that has been begun and fetched again: the application may
// have changed it meanwhile, to one that cannot be gone on with.
func (r *requester) unchanged(c *reqCall) bool {
	st := r.judge(c.common, &r.W)
	if r.Off >= r.W.Length {
		st = LocQPOpErr
	}
	if st != Success {
		r.failHere(c, st)
		return false
	}
	return true
}

// admit checks the request in W before its first packet and reports whether it may be
// sent now.
func (r *requester) admit(c *reqCall) bool {
	w := &r.W
	if st := r.judge(c.common, w); st != Success {
		r.failHere(c, st)
		return false
	}
	// A fence waits for the answers to earlier READs and atomics (IBA 10.8.3.3),
	// LOCAL_INV for the end of everything before it (IBA 10.6.5.1), BIND_MW only
	// until what was posted before it has been sent.
	again := int32(r.Started-r.Pos) > 0
	if w.Flags&FlagFence != 0 && r.RDOut > 0 || w.Op == WRLocalInv && !again && r.Tail != r.Pos ||
		w.Op.isRD() && r.RDOut >= uint32(c.Attr.MaxRDAtomic) {
		r.Blocked = true
		return false
	}
	return true
}

// judge finds fault with a request that can be told from the request alone.
func (r *requester) judge(c *common, w *SendWQE) Status {
	switch {
	case w.Bad != Success:
		return w.Bad
	case !w.Op.Valid(c.Conf.Type):
		return LocQPOpErr
	case c.Attr.Denied != 0 && c.denies(sendKind(w.Op)):
		return RemAccessErr
	case w.Op.isRD() && c.Attr.MaxRDAtomic == 0:
		return LocQPOpErr
	case (w.Op == WRCmpSwap || w.Op == WRFetchAdd) && w.Length < 8:
		return LocLenErr
	case w.Length > MaxMessage:
		return LocLenErr
	}
	return Success
}

// begin notes that the request at Pos has been started.
func (r *requester) begin(packets uint32) {
	if r.Pos == r.Started {
		r.Sent.note(r.Pos, &r.W, packets)
		r.Started++
	}
}

// local performs the local operation in W, unless it was done before going back.
func (r *requester) local(c *reqCall) int {
	if r.Pos == r.Started {
		if st := c.h.LocalOp(&r.W); st != Success {
			r.failHere(c, st)
			return 0
		}
		r.begin(0)
	}
	r.Loaded = false
	r.Pos++
	r.completeLocal(c)
	if c.running() {
		return minCost
	}
	return 0
}
