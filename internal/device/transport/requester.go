package transport

import "vrdma.dev/vrdma/internal/ib"

// requester is the sending half of a queue pair. Work requests stay in the application's ring. The requester
// fetches them when it needs them, and again for a retransmission:
//
//	      Tail              Pos         Started
//	───────┬─────────────────┬─────────────┬──────────▶ positions
//	 done  │ sent, not acked │ to be       │ not yet
//	       │                 │ resent      │ fetched
//	───────┴──────┬──────────┴──────┬──────┴──────────▶ PSNs
//	   TailPSN   Una               PSN    Max
//
// Without loss Pos equals Started (or is the message being sent) and PSN equals Max. UC and UD requests
// complete when their last packet has been sent.
//
// The files of the requester:
//
//	requester.go   which request is next, and whether it may be sent
//	sending.go     converts a request into bursts (UD: unreliable.go)
//	flow.go        how much may be sent now
//	response.go    handles responses
//	completion.go  completes requests, with success or an error
//	recovery.go    timers, retries, probes: go back to the oldest packet
//	repair.go      retransmits only what a vrdma host misses
//	reassembly.go  requests only missing READ data again
//
// It accesses its own fields, and the shared fields of common.
type requester struct {
	Tail    uint32 `cbor:"1,keyasint,omitempty"`  // oldest uncompleted work request
	Pos     uint32 `cbor:"2,keyasint,omitempty"`  // work request being sent
	Started uint32 `cbor:"3,keyasint,omitempty"`  // all positions before it have been started at least once
	TailPSN uint32 `cbor:"4,keyasint,omitempty"`  // PSN of Tail's first packet
	Una     uint32 `cbor:"5,keyasint,omitempty"`  // oldest unacknowledged PSN
	PSN     uint32 `cbor:"6,keyasint,omitempty"`  // next PSN to send
	Max     uint32 `cbor:"7,keyasint,omitempty"`  // one past the highest PSN ever sent
	Off     uint32 `cbor:"8,keyasint,omitempty"`  // bytes of W sent in this pass
	Unasked uint32 `cbor:"9,keyasint,omitempty"`  // packets since the last ACK request
	RDOut   uint32 `cbor:"10,keyasint,omitempty"` // READs and atomics sent in this pass and not answered
	Chunk   uint32 `cbor:"11,keyasint,omitempty"` // packets per READ piece

	FailPos    uint32 `cbor:"12,keyasint,omitempty"` // this request cannot be sent;
	FailStatus Status `cbor:"13,keyasint,omitempty"` // it completes with this status after the requests before it

	Loaded  bool `cbor:"14,keyasint,omitempty"` // W is the request at Pos
	Blocked bool `cbor:"15,keyasint,omitempty"` // run stopped although there is work: window, fence or initiator depth
	Kick    bool `cbor:"16,keyasint,omitempty"` // run has work
	Drained bool `cbor:"17,keyasint,omitempty"` // the send queue is drained in SQD

	W      SendWQE      `cbor:"18,keyasint,omitzero"`
	Sent   sentRequests `cbor:"-"`
	Loss   recovery     `cbor:"19,keyasint,omitzero"`
	Repair repair       `cbor:"20,keyasint,omitzero"`
	Reads  reassembly   `cbor:"21,keyasint,omitzero"`
	CC     congestion   `cbor:"22,keyasint,omitzero"`
}

// sentRequests caches the newest started requests, so that completing them does not read the application's
// ring again.
type sentRequests [64]sentRequest

// sentRequest is the data that completing a request needs.
type sentRequest struct {
	WRID    uint64
	Pos     uint32
	Length  uint32
	Packets uint32
	Op      WROp
	Flags   uint8
}

// note caches the request at pos, which has so many packets.
func (s *sentRequests) note(pos uint32, w *SendWQE, packets uint32) {
	s[pos%uint32(len(s))] = sentRequest{
		WRID: w.WRID, Pos: pos, Length: w.Length, Packets: packets, Op: w.Op, Flags: w.Flags,
	}
}

// find loads the cached data of the request at pos into w.
func (s *sentRequests) find(pos uint32, w *SendWQE) (packets uint32, ok bool) {
	q := &s[pos%uint32(len(s))]
	if q.Pos != pos {
		return 0, false
	}
	w.Pos, w.WRID, w.Op, w.Flags, w.Length = q.Pos, q.WRID, q.Op, q.Flags, q.Length
	w.NumSGE = 0
	return q.Packets, true
}

// minCost is the minimum cost of a message in the budgets of Run and Respond: about the time for copying so
// many bytes.
const minCost = 256

// run sends up to about budget bytes of payload and reports whether it can send more at once.
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

// step sends one burst or executes one local operation. It returns the cost, or zero if there was nothing to
// do.
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
		// The gap reaches into this READ. Sending it here and again after resuming would count it twice.
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

// load fetches the request at Pos into W and finds the offset to continue from.
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

// unchanged checks a started request that was fetched again: the application may have changed it to one that
// cannot be continued.
func (r *requester) unchanged(c *reqCall) bool {
	st := c.judge(&r.W)
	if r.Off >= r.W.Length {
		st = LocQPOpErr
	}
	if st != Success {
		r.failHere(c, st)
		return false
	}
	return true
}

// admit checks the request in W before its first packet and reports whether it may be sent now.
func (r *requester) admit(c *reqCall) bool {
	w := &r.W
	if st := c.judge(w); st != Success {
		r.failHere(c, st)
		return false
	}
	// A fence waits for the responses to earlier READs and atomics (IBA 10.8.3.3), LOCAL_INV for the
	// completion of everything before it (IBA 10.6.5.1), and BIND_MW only until earlier requests are sent.
	again := int32(r.Started-r.Pos) > 0
	if w.Flags&FlagFence != 0 && r.RDOut > 0 || w.Op == WRLocalInv && !again && r.Tail != r.Pos ||
		w.Op.isRD() && r.RDOut >= uint32(c.Attr.MaxRDAtomic) {
		r.Blocked = true
		return false
	}
	return true
}

// judge returns the error status of a request that is invalid by itself.
func (c *common) judge(w *SendWQE) Status {
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

// begin records that the request at Pos has been started.
func (r *requester) begin(packets uint32) {
	if r.Pos == r.Started {
		r.Sent.note(r.Pos, &r.W, packets)
		r.Started++
	}
}

// local executes the local operation in W, unless it was executed before going back.
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
