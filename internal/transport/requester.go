package transport

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
	Window  uint32 // packets in flight at most
	Burst   uint32 // bytes in a burst at most
	Chunk   uint32 // packets of a READ that are asked for at once

	FailPos    uint32 // this request cannot be sent:
	FailStatus Status // it fails when its turn to complete comes

	Loaded    bool // W is the request at Pos
	Blocked   bool // Run stopped although there is work: window, fence or depth
	Kick      bool // Run has something to do
	Retrying  bool // went back; no further implicit NAK does so before there is progress
	Drained   bool // SQD has been reached
	Probing   bool // went back by one packet, to hear what has arrived
	Holed     bool // parts of pieces have been asked for
	Repairing bool // at the first of Gaps, to come back to Resume…

	Retry     uint8 // retries left
	RNRRetry  uint8
	Probes    uint8 // probes since there was progress
	RetransAt Time  // deadline of the oldest unacknowledged packet
	ProbeAt   Time  // when to find out why nothing is heard; remote paths only
	RNRAt     Time  // no sending before then

	Arrived       uint32 // packets before it were asked for or have arrived, says the peer
	NumGaps       uint8
	Gaps          [16]gap // packets that the peer misses
	ResumePos     uint32
	ResumePSN     uint32
	ResumeOff     uint32
	ResumeUnasked uint32

	NumHoles uint8
	NumSeen  uint32 // packets in Seen
	SeenEnd  uint32 // one past the newest of them
	Holes    [8]gap // READ data to be asked for again
	HoleAt   Time   // when the first that is missing was last asked for
	Seen     seen

	W      SendWQE
	Recent [64]record // the newest requests begun, so that completing needs no second look
}

// record is what completing a request needs to know of it.
type record struct {
	WRID    uint64
	Pos     uint32
	Length  uint32
	Packets uint32
	Op      WROp
	Flags   uint8
}

// ackEvery is the longest run of packets that does not ask for an ACK, as in rxe.
const ackEvery = 64

// minCost is what a message costs at least of the budget of Run and Respond: about
// the time that copying so many bytes takes.
const minCost = 256

// RunPending reports whether Run has become useful since it was last called.
func (q *QP) RunPending() bool { return q.req.Kick }

// Run sends what may be sent, about budget bytes of payload at most, and reports
// whether there is more to do at once.
func (q *QP) Run(now Time, budget int, h Host) (more bool) {
	r := &q.req
	r.Kick = false
	switch q.state {
	case RTS, SQD:
	case Error, SQE:
		return q.flushSends(h)
	default:
		return false
	}
	if r.RNRAt != 0 {
		if now < r.RNRAt {
			return false
		}
		r.RNRAt = 0
	}
	r.Blocked = false
	scratch := h.Scratch()
	q.takeShare(scratch.Share)
	scratch.Extra = 0
	for budget > scratch.Extra {
		n := q.step(now, budget, h)
		if n == 0 || scratch.Held {
			return false
		}
		budget -= n
	}
	return q.state == RTS || q.state == SQD
}

// step sends one burst or performs one local operation. It returns its cost, zero if
// there was nothing to do.
func (q *QP) step(now Time, budget int, h Host) int {
	r := &q.req
	if r.NumGaps > 0 && !q.repair(h) {
		return 0
	}
	if r.NumHoles > 0 {
		return q.sendHole(now, h)
	}
	if r.FailStatus != Success && r.Pos == r.FailPos {
		return 0
	}
	if !r.Loaded && !q.load(h) {
		return 0
	}
	w := &r.W
	if r.Repairing && w.Op.isRD() {
		// The gap reaches into it. Sent again both here and after resuming, it would
		// count as two.
		q.rewind()
		return minCost
	}
	if r.Off == 0 && !q.admit(now, h) {
		return 0
	}
	if w.Op.isLocal() {
		return q.local(now, h)
	}
	if q.conf.Type == RC {
		if !q.fits(now) {
			r.Blocked = true
			return 0
		}
	} else if q.path.Remote && q.pace.hold(now) {
		return 0
	}
	switch {
	case q.conf.Type == UD:
		return q.sendDatagram(now, h)
	case w.Op.isRD():
		return q.sendRD(now, h)
	}
	return q.sendData(now, budget, h)
}

// load brings the request at Pos into W and finds out where in it to go on.
func (q *QP) load(h Host) bool {
	r := &q.req
	if q.state == SQD && r.Pos == r.Started {
		return false
	}
	if !h.FetchSend(r.Pos, &r.W) {
		return false
	}
	r.Loaded = true
	r.Off = 0
	if r.Pos == r.Tail {
		r.Off = psnDist(r.TailPSN, r.PSN) * q.attr.MTU
	}
	return r.Off == 0 || q.unchanged(h)
}

// unchanged looks at a request that has been begun and fetched again: the application may
// have changed it meanwhile, to one that cannot be gone on with.
func (q *QP) unchanged(h Host) bool {
	r := &q.req
	st := q.judge(&r.W)
	if r.Off >= r.W.Length {
		st = LocQPOpErr
	}
	if st != Success {
		q.failHere(st, h)
		return false
	}
	return true
}

// admit checks the request in W before its first packet and reports whether it may be
// sent now.
func (q *QP) admit(now Time, h Host) bool {
	r := &q.req
	w := &r.W
	if st := q.judge(w); st != Success {
		q.failHere(st, h)
		return false
	}
	// A fence waits for the answers to earlier READs and atomics (IBA 10.8.3.3),
	// LOCAL_INV for the end of everything before it (IBA 10.6.5.1), BIND_MW only
	// until what was posted before it has been sent.
	again := int32(r.Started-r.Pos) > 0
	if w.Flags&FlagFence != 0 && r.RDOut > 0 || w.Op == WRLocalInv && !again && r.Tail != r.Pos ||
		w.Op.isRD() && r.RDOut >= uint32(q.attr.MaxRDAtomic) {
		r.Blocked = true
		return false
	}
	return true
}

// judge finds fault with a request that can be told from the request alone.
func (q *QP) judge(w *SendWQE) Status {
	switch {
	case w.Bad != Success:
		return w.Bad
	case !w.Op.Valid(q.conf.Type):
		return LocQPOpErr
	case w.Op.isRD() && q.attr.MaxRDAtomic == 0:
		return LocQPOpErr
	case (w.Op == WRCmpSwap || w.Op == WRFetchAdd) && w.Length < 8:
		return LocLenErr
	case w.Length > MaxMessage:
		return LocLenErr
	}
	return Success
}

// fits reports whether the next packet keeps to the window.
func (q *QP) fits(now Time) bool {
	r := &q.req
	out := psnDist(r.Una, r.PSN)
	if q.path.Remote {
		return q.fitsPath(now, out)
	}
	if out >= r.Window {
		return false
	}
	if r.W.Op == WRRead && out != 0 {
		return out+packetsOf(r.W.Length-r.Off, q.attr.MTU) <= psnHalf
	}
	return true
}

// begin notes that the request at Pos has been started.
func (q *QP) begin(packets uint32) {
	r := &q.req
	if r.Pos != r.Started {
		return
	}
	w := &r.W
	r.Recent[r.Pos%uint32(len(r.Recent))] = record{
		WRID: w.WRID, Pos: r.Pos, Length: w.Length, Packets: packets, Op: w.Op, Flags: w.Flags,
	}
	r.Started++
}

// local performs the local operation in W, unless it was done before going back.
func (q *QP) local(now Time, h Host) int {
	r := &q.req
	if r.Pos == r.Started {
		if st := h.LocalOp(&r.W); st != Success {
			q.failHere(st, h)
			return 0
		}
		q.begin(0)
	}
	r.Loaded = false
	r.Pos++
	q.completeLocal(h)
	if q.state == RTS || q.state == SQD {
		return minCost
	}
	return 0
}

// sendData sends the next burst of a SEND or WRITE.
func (q *QP) sendData(now Time, budget int, h Host) int {
	r := &q.req
	w := &r.W
	mtu := q.attr.MTU
	left := w.Length - r.Off
	n := min(left, q.most())
	if budget < int(n) {
		n = max(uint32(budget), mtu)
	}
	if q.conf.Type == RC {
		// In packets first: the window times the MTU may not fit in 32 bits.
		room := r.Window - psnDist(r.Una, r.PSN)
		if q.path.Remote {
			room = q.room()
		}
		if n/mtu >= room {
			n = room * mtu
		}
	}
	if n >= left {
		n = left
	} else {
		n -= n % mtu
	}
	sc := h.Scratch()
	sc.OutData.Reset()
	if n > 0 {
		if st := h.Gather(w, r.Off, n, &sc.OutData); st != Success {
			if st != Later {
				q.failHere(st, h)
			}
			return 0
		}
	}
	b := &sc.Out
	q.address(b, sendKind(w.Op))
	b.First = r.Off == 0
	b.Last = n == left
	b.Packets = packetsOf(n, mtu)
	if w.Op == WRWrite || w.Op == WRWriteImm {
		b.VA, b.RKey, b.Length = w.RemoteAddr, w.RKey, w.Length
	}
	b.Imm = w.Imm
	b.Solicited = b.Last && w.Flags&FlagSolicited != 0 && w.Op != WRWrite
	b.Data = &sc.OutData
	r.Unasked += b.Packets
	if q.conf.Type != RC {
		r.Unasked = 0
	} else if b.AckReq = b.Last || r.Unasked >= ackEvery || r.Unasked*2 >= r.Window || q.path.Remote && q.ask(b.Packets); b.AckReq {
		r.Unasked = 0
	}
	if b.First {
		q.begin(packetsOf(w.Length, mtu))
	}
	r.Off += n
	return q.emit(now, b, b.Packets, b.Last, max(int(n), minCost), h)
}

// most is how many bytes the next burst of the request in W may have. Behind the first
// packet of a WRITE, which is longer than the others, a link that cuts bursts into runs of
// packets of one length has to begin a new run, and the second packet ends the first run:
// both come on top, so that what follows fills a run. (A link that makes all of them as long
// needs no such care, and it does no harm there.)
func (q *QP) most() uint32 {
	r := &q.req
	if q.path.Remote && r.Off == 0 && (r.W.Op == WRWrite || r.W.Op == WRWriteImm) {
		return r.Burst + 2*q.attr.MTU
	}
	return r.Burst
}

// sendRD sends a READ, an atomic or a flush: one packet that takes the PSNs of its
// response.
func (q *QP) sendRD(now Time, h Host) int {
	r := &q.req
	w := &r.W
	b := &h.Scratch().Out
	q.address(b, sendKind(w.Op))
	b.First, b.Last, b.AckReq, b.Packets = true, true, true, 1
	b.VA, b.RKey, b.Length = w.RemoteAddr, w.RKey, 8
	psns, done := uint32(1), true
	switch w.Op {
	case WRRead:
		b.VA += uint64(r.Off)
		b.Length = w.Length - r.Off
		psns = packetsOf(b.Length, q.attr.MTU)
		if psns > 1 {
			if n := q.piece(psns); n < psns {
				psns, done = n, false
				b.Length = n * q.attr.MTU
				r.Off += b.Length
			}
		}
		q.begin(packetsOf(w.Length, q.attr.MTU))
	case WRCmpSwap:
		b.Compare, b.Swap = w.CompareAdd, w.Swap
	case WRFetchAdd:
		b.Swap = w.CompareAdd
	case WRAtomicWrite:
		b.Swap = w.Swap
	case WRFlush:
		b.Length, b.Imm = w.Length, w.Imm
	}
	if w.Op != WRRead {
		q.begin(1)
	}
	r.RDOut++
	r.Unasked = 0
	return q.emit(now, b, psns, done, minCost, h)
}

// address resets b and fills in what all bursts of a connected queue pair share.
func (q *QP) address(b *Burst, k Kind) {
	*b = Burst{
		Type: q.conf.Type, Kind: k, Src: q.conf.Num, Dst: q.attr.DestQPN,
		SGID: q.attr.SGID, DGID: q.attr.DGID, PKey: q.attr.PKey, MTU: q.attr.MTU,
	}
}

// emit sends b, which takes psns sequence numbers, and moves on, to the next request if
// this one is done. Everything is in
// order before the link sees the burst: the peer may be this very queue pair.
func (q *QP) emit(now Time, b *Burst, psns uint32, done bool, cost int, h Host) int {
	r := &q.req
	b.PSN = r.PSN
	if old := psnDist(r.PSN, r.Max); old != 0 && old <= psnHalf {
		q.count.Retransmitted += uint64(b.Packets)
	}
	next := psnAdd(r.PSN, psns)
	if q.path.Remote {
		q.depart(now, b, psns)
	}
	if psnDist(r.Una, next) > psnDist(r.Una, r.Max) {
		r.Max = next
	}
	r.PSN = next
	if done {
		r.Pos++
		r.Loaded = false
		q.count.RDMASends++
	}
	if r.RetransAt == 0 && q.conf.Type == RC {
		q.restartTimer(now)
	}
	q.transmit(b, h)
	if q.state != RTS && q.state != SQD {
		return 0
	}
	if done && q.conf.Type != RC {
		q.completeUnreliable(h)
	}
	return cost
}

// transmit hands b to the link and counts it.
func (q *QP) transmit(b *Burst, h Host) {
	q.count.SentPackets += uint64(b.Packets)
	q.count.SentBytes += uint64(b.size())
	h.Send(b)
}
