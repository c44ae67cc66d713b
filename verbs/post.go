package verbs

import (
	"fmt"
	"math"
	"syscall"

	"vrdma.dev/vrdma/internal/abi"
)

// A SendWR is a work request for the send queue. Op decides which fields matter. PostSend copies the
// request and Data, so both can be reused at once. The memory that SGL names must stay unchanged until
// the request has completed.
type SendWR struct {
	ID    uint64 // returned in the completion
	Op    Op
	Flags Flags
	SGL   []SGE  // source of the data; destination for reads and atomics
	Data  []byte // used instead of SGL: inline data, up to QPConfig.MaxInline bytes
	Imm   uint32 // immediate value; for SendInvalidate and LocalInvalidate the key

	RemoteAddr uint64 // write, read, atomics: address in the peer's memory
	RKey       uint32

	Compare uint64 // CompareSwap: the expected value; FetchAdd: the value to add
	Swap    uint64 // CompareSwap: the new value; AtomicWrite: the value

	AH        *AH // UD
	RemoteQPN uint32
	QKey      uint32

	Window *MW // BindWindow: the window to bind to MR at RemoteAddr, with the key Window.RKey()
	MR     *MR
	Length uint64 // BindWindow, Flush: length in bytes; a Flush of 0 flushes the whole region of the key
	Access Access // BindWindow: rights of peers; Flush: FlushGlobal, FlushPersistent or both
}

// A RecvWR is a work request for a receive queue.
type RecvWR struct {
	ID  uint64
	SGL []SGE
}

var (
	errSendFull   = &Error{Op: "post a send", Err: ErrFull, Advice: "poll the completion queue first, or make MaxSend larger"}
	errRecvFull   = &Error{Op: "post a receive", Err: ErrFull, Advice: "poll the completion queue first, or make MaxRecv larger"}
	errSendClosed = &Error{Op: "post a send", Err: ErrClosed}
	errRecvClosed = &Error{Op: "post a receive", Err: ErrClosed}
	errRecvSRQ    = &Error{Op: "post a receive", Err: syscall.EINVAL, Advice: "the queue pair has a shared receive queue: post there"}
)

// PostSend posts a work request. It neither waits nor allocates.
func (q *QP) PostSend(wr *SendWR) error {
	q.send.Lock()
	defer q.send.Unlock()
	if err := q.enqueue(wr); err != nil {
		return err
	}
	return q.bellResult(q.d.backend.RingBell(q.handle, q.bell))
}

// PostSends posts work requests in order and rings the doorbell once. It returns the number posted.
func (q *QP) PostSends(wrs []SendWR) (int, error) {
	q.send.Lock()
	defer q.send.Unlock()
	for i := range wrs {
		if err := q.enqueue(&wrs[i]); err != nil {
			if i > 0 {
				if e := q.bellResult(q.d.backend.RingBell(q.handle, q.bell)); e != nil {
					err = e
				}
			}
			return i, err
		}
	}
	if len(wrs) == 0 {
		return 0, nil
	}
	return len(wrs), q.bellResult(q.d.backend.RingBell(q.handle, q.bell))
}

// bellResult returns the result of ringing the doorbell. If the queue pair cannot send, a command asks why.
func (q *QP) bellResult(err error) error {
	if err == nil {
		if q.d.gone.Load() {
			return fault("post a send", q.d.err())
		}
		return nil
	}
	if err == syscall.EAGAIN {
		var r abi.PostSendResp
		_, err = exec(q.d, abi.CmdPostSend, &abi.PostSend{Response: q.d.response(), QPHandle: q.handle, WQESize: sendWRSize}, nil, decode(&r))
	}
	return fault("post a send", err)
}

// enqueue writes a work request into the ring.
func (q *QP) enqueue(wr *SendWR) error {
	r := q.send.ring
	if r == nil {
		return errSendClosed
	}
	if r.full() {
		return errSendFull
	}
	b := r.slot(r.pos)
	if err := q.fits(wr, b); err != nil {
		return err
	}
	clear(b[:abi.SendWQESize])
	flags := wr.Flags & (Fence | Signaled | Solicited)
	if len(wr.Data) > 0 {
		flags |= inline
	}
	put64(b, abi.SendWRID, wr.ID)
	put32(b, abi.SendOpcode, uint32(wr.Op))
	put32(b, abi.SendFlags, uint32(flags))
	q.operation(wr, b)
	var length uint32
	switch {
	case len(wr.SGL) > 0:
		length = putSGL(b[abi.SendSGE:], wr.SGL)
	case wr.Op == AtomicWrite:
		put64(b, abi.SendInline, wr.Swap)
		length = 8
	case wr.Op == Flush:
		length = uint32(wr.Length)
	default:
		length = uint32(copy(b[abi.SendInline:], wr.Data))
	}
	put64(b, abi.SendIOVA, wr.RemoteAddr)
	put32(b, abi.SendSSN, q.send.ssn)
	put32(b, abi.SendDMALength, length)
	put32(b, abi.SendDMAResid, length)
	put32(b, abi.SendNumSGE, uint32(len(wr.SGL)))
	q.send.ssn++
	r.push()
	return nil
}

// putSGL writes a scatter/gather list into b, which is large enough, and returns the list's length in bytes.
func putSGL(b []byte, list []SGE) (length uint32) {
	for i := range list {
		s, at := &list[i], b[i*abi.SGESize:][:abi.SGESize]
		put64(at, abi.SGEAddr, s.Addr)
		put32(at, abi.SGELength, s.Length)
		put32(at, abi.SGELKey, s.LKey)
		length += s.Length
	}
	return length
}

// operation writes the fields that depend on the opcode.
func (q *QP) operation(wr *SendWR, b []byte) {
	switch wr.Op {
	case WriteImm, SendImm:
		put32(b, abi.SendImm, swap32(wr.Imm))
	case SendInvalidate, LocalInvalidate:
		put32(b, abi.SendImm, wr.Imm)
	}
	switch wr.Op {
	case Write, WriteImm, Read, AtomicWrite:
		put64(b, abi.SendRemoteAddr, wr.RemoteAddr)
		put32(b, abi.SendRKey, wr.RKey)
	case Flush:
		put64(b, abi.SendRemoteAddr, wr.RemoteAddr)
		put32(b, abi.SendFlushRKey, wr.RKey)
		b[abi.SendFlushType] = uint8(wr.Access / FlushGlobal & 3)
		if wr.Length == 0 {
			b[abi.SendFlushLevel] = 1 // the whole memory region
		}
	case CompareSwap, FetchAdd:
		put64(b, abi.SendRemoteAddr, wr.RemoteAddr)
		put64(b, abi.SendCompareAdd, wr.Compare)
		put64(b, abi.SendSwap, wr.Swap)
		put32(b, abi.SendAtomicRKey, wr.RKey)
	case BindWindow:
		put64(b, abi.SendMWAddr, wr.RemoteAddr)
		put64(b, abi.SendMWLength, wr.Length)
		put32(b, abi.SendMWMRLKey, wr.MR.lkey)
		put32(b, abi.SendMWMWRKey, wr.Window.handleKey())
		put32(b, abi.SendMWRKey, wr.Window.rkey)
		put32(b, abi.SendMWAccess, uint32(wr.Access))
	case Send, SendImm:
		if q.typ == UD {
			put32(b, abi.SendRemoteQPN, wr.RemoteQPN)
			put32(b, abi.SendRemoteQKey, wr.QKey)
			put32(b, abi.SendAHNum, wr.AH.num)
			copy(b[abi.SendAV:], wr.AH.av[:])
		}
	}
}

// fits returns an error if a work request cannot be posted. It writes nothing.
func (q *QP) fits(wr *SendWR, slot []byte) error {
	switch {
	case len(wr.Data) > 0 && len(wr.SGL) > 0:
		return misuse("both Data and SGL are set: use one")
	case len(wr.Data) > q.caps.MaxInline || len(wr.Data) > len(slot)-abi.SendInline:
		return misuse("%d bytes of inline data: the queue pair allows %d", len(wr.Data), q.caps.MaxInline)
	case len(wr.SGL) > q.caps.MaxSendSGE || len(wr.SGL)*abi.SGESize > len(slot)-abi.SendSGE:
		return misuse("a list of %d entries: the queue pair allows %d", len(wr.SGL), q.caps.MaxSendSGE)
	case q.typ == UD && wr.AH == nil && (wr.Op == Send || wr.Op == SendImm):
		return misuse("no address handle: set AH")
	case wr.Op == BindWindow && (wr.Window == nil || wr.MR == nil):
		return misuse("no memory window or no memory region: set Window and MR")
	case wr.Op == Flush && (wr.Access == 0 || wr.Access&^(FlushGlobal|FlushPersistent) != 0):
		return misuse("Access %#x for a flush: use FlushGlobal, FlushPersistent or both", wr.Access)
	case wr.Op == Flush && wr.Length > math.MaxUint32:
		return misuse("a flush of %d bytes: the limit is 2^32-1", wr.Length)
	case (wr.Op == AtomicWrite || wr.Op == Flush) && len(wr.Data)+len(wr.SGL) > 0:
		return misuse("%v takes no data: clear Data and SGL", wr.Op)
	}
	return nil
}

// misuse returns an error for a work request that is invalid.
func misuse(format string, args ...any) error {
	return &Error{Op: "post a send", Err: fmt.Errorf(format+": %w", append(args, syscall.EINVAL)...)}
}

// PostRecv posts a receive. It neither waits nor allocates.
func (q *QP) PostRecv(wr *RecvWR) error {
	q.recv.Lock()
	defer q.recv.Unlock()
	r := q.recv.ring
	if r == nil {
		if q.caps.SRQ != nil {
			return errRecvSRQ
		}
		return errRecvClosed
	}
	return r.receive(wr, q.caps.MaxRecvSGE)
}

// receive writes a receive into a ring.
func (r *ring) receive(wr *RecvWR, most int) error {
	if r.full() {
		return errRecvFull
	}
	b := r.slot(r.pos)
	if len(wr.SGL) > most || len(wr.SGL)*abi.SGESize > len(b)-abi.RecvSGE {
		return &Error{Op: "post a receive", Err: fmt.Errorf("the list has %d entries, the queue allows %d: %w", len(wr.SGL), most, syscall.EINVAL)}
	}
	clear(b[:abi.RecvWQESize])
	put64(b, abi.RecvWRID, wr.ID)
	length := putSGL(b[abi.RecvSGE:], wr.SGL)
	put32(b, abi.RecvDMALength, length)
	put32(b, abi.RecvDMAResid, length)
	put32(b, abi.RecvNumSGE, uint32(len(wr.SGL)))
	r.push()
	return nil
}
