package nic

import (
	"encoding/binary"

	"vrdma/internal/abi"
	"vrdma/internal/ib"
	"vrdma/internal/protocol"
	"vrdma/internal/transport"
)

// A client need not wait for a command that is sure to be accepted: it leaves the command in its mailbox,
// and goes on (shim/protocol.h). These are the three moves of a queue pair of type RC that librdmacm makes for each
// connection: MODIFY_QP in RESET or INIT to INIT, with the attributes that this takes; right after it that to
// RTR, if it says the same as one that this session made before, but for the numbers of queue pairs and packets;
// and right after that the one to RTS, likewise. Whether a move to RTR is accepted depends on its attributes and on the
// NIC only, as long as there are no rules about who may meet whom: then there is nothing to be sure of.
//
// Who can see that such a command has not been run yet?
//   - the client, with its next command of the same device or of the connection manager: it is run before either;
//   - the peer, whose packet finds the queue pair not ready: it is run then, and before the packet (Session.CatchUp);
//   - the client that polls: the loop finds it by itself, soon.
// A move away from RTS is not among them. Who makes that may count on nothing being written to its memory afterwards.
//
// If such a command fails all the same, because rules were declared meanwhile or something else has become of the
// queue pair, it is as if that had happened right after it: the queue pair is in ERROR.

// initMask are the attributes of that command.
const initMask = abi.QPMaskState | abi.QPMaskPKeyIndex | abi.QPMaskPort | abi.QPMaskAccessFlags

// sureValue is that command, and sureMask has ones for what is looked at of it.
var sureValue, sureMask = sureCommand()

func sureCommand() (command, looked []byte) {
	value := abi.ModifyQP{AttrMask: initMask, QPState: uint8(ib.StateInit), PortNum: 1}
	// The handle may be any; its bit says the rest.
	mask := abi.ModifyQP{AttrMask: ^uint32(0), QPState: 0xff, PortNum: 0xff, PKeyIndex: 0xffff}
	length := abi.Size[abi.CmdHeader]() + abi.Size[abi.ModifyQP]()
	header := abi.CmdHeader{Command: abi.CmdModifyQP, InWords: uint16(length / 4)}
	ones := abi.CmdHeader{Command: ^uint32(0), InWords: 0xffff, OutWords: 0xffff}
	return abi.Encode(abi.Encode(nil, &header), &value), abi.Encode(abi.Encode(nil, &ones), &mask)
}

// The commands that follow it: to RTR, and to RTS.
const (
	sureSecond = iota
	sureThird
	sureRow
)

// sureAny are the words of these that may be anything: the handle, and numbers that are all as good.
var sureAny = wordsOf(&abi.ModifyQP{QPHandle: ^uint32(0), RQPSN: ^uint32(0), SQPSN: ^uint32(0), DestQPNum: ^uint32(0)})

// wordsOf has a bit for each word of the command that is not 0.
func wordsOf(q *abi.ModifyQP) (words uint32) {
	b := abi.Encode(abi.Encode(nil, &abi.CmdHeader{}), q)
	for i := 0; i < len(b); i += 4 {
		if binary.NativeEndian.Uint32(b[i:]) != 0 {
			words |= 1 << (i / 4)
		}
	}
	return words
}

// A sureSession is what a session knows about sure commands.
type sureSession struct {
	row [sureRow][]byte // those that may follow, as they were made before; nil: none was
	// catchUp runs what the client has left in its mailbox; nil: it has none.
	catchUp func()
}

// OnCatchUp says how what the client has left is run. It runs on the loop.
func (s *Session) OnCatchUp(f func()) { s.sure.catchUp = f }

// CatchUp runs what the owner of a queue pair that is not ready has left: it may be the move that makes
// it so. It runs on the loop.
func (q *QP) CatchUp() {
	if f := q.session.sure.catchUp; f != nil {
		f()
	}
}

// Sure reports whether a command is one that may be left.
func (s *Session) Sure(command []byte) bool {
	if len(command) != len(sureValue) {
		return false
	}
	for _, made := range s.sure.row {
		if made != nil && alike(command, made) {
			return true
		}
	}
	for i, b := range command {
		if b&sureMask[i] != sureValue[i]&sureMask[i] {
			return false
		}
	}
	return true
}

// alike reports whether two commands of the same length differ in nothing that matters.
func alike(a, b []byte) bool {
	for i := range len(a) / 4 {
		if sureAny>>i&1 == 0 && [4]byte(a[4*i:]) != [4]byte(b[4*i:]) {
			return false
		}
	}
	return true
}

// Learn has the client make a command that was accepted without waiting, the next time. It runs on the
// loop.
func (s *Session) Learn(command []byte) {
	var hdr abi.CmdHeader
	var m abi.ModifyQP
	if len(command) != len(sureValue) || s.nic.rules.guard != nil || s.Arena.lost ||
		!abi.Decode(command, &hdr) || hdr.Command != abi.CmdModifyQP || !abi.Decode(command[abi.Size[abi.CmdHeader]():], &m) {
		return
	}
	which := sureSecond
	const not = abi.QPMaskCurState | abi.QPMaskAltPath
	if m.AttrMask&(abi.QPMaskState|not) != abi.QPMaskState {
		return
	}
	switch ib.State(m.QPState) {
	case ib.StateRTR:
	case ib.StateRTS:
		which = sureThird
	default:
		return
	}
	q, err := s.qps.get(m.QPHandle)
	if err != nil || q.typ != ib.RC || s.sure.row[which] != nil && alike(s.sure.row[which], command) {
		return
	}
	s.sure.row[which] = append(s.sure.row[which][:0], command...)
	s.Arena.learn(which, command)
}

// unlearn has the client wait again for what follows the first command: there are rules.
func (s *Session) unlearn() {
	s.sure.row = [sureRow][]byte{}
	if !s.Arena.lost {
		shared32(s.Arena.mem, protocol.SureAfter).Store(0)
	}
}

// Unsure is told of a command that was left, and was refused when it was run.
func (s *Session) Unsure(command []byte) {
	var m abi.ModifyQP
	if len(command) != len(sureValue) || !abi.Decode(command[abi.Size[abi.CmdHeader]():], &m) {
		return
	}
	q, err := s.qps.get(m.QPHandle)
	if err != nil {
		return
	}
	switch q.tr.State() {
	case ib.StateReset, ib.StateError:
	case ib.StateInit:
		q.Event(transport.EventFatal)
		q.apply(ib.MaskState, &QPAttr{State: uint8(ib.StateError)}, ib.StateError)
	default:
		q.tr.Revoke(q.owner.Now(), &q.env)
		q.publish()
		q.NoteError()
		q.owner.Wake()
	}
}

// learn describes a command of the row.
func (a *Arena) learn(which int, command []byte) {
	after := shared32(a.mem, protocol.SureAfter)
	after.And(^(uint32(1) << which))
	copy(a.mem[protocol.SureSecond+which*protocol.SureMax:], command)
	after.Or(1 << which)
}

// describeSure tells the client which command is sure.
func (a *Arena) describeSure() {
	length := len(sureValue)
	copy(a.mem[protocol.SureValue:], sureValue)
	copy(a.mem[protocol.SureMask:], sureMask)
	// Where the handle is: where one that is all ones has them.
	handle := abi.Encode(abi.Encode(nil, &abi.CmdHeader{}), &abi.ModifyQP{QPHandle: ^uint32(0)})
	at := 0
	for handle[at] == 0 {
		at++
	}
	binary.NativeEndian.PutUint32(a.mem[protocol.SureHandleAt:], uint32(at))
	binary.NativeEndian.PutUint32(a.mem[protocol.SureAny:], sureAny)
	shared32(a.mem, protocol.SureLength).Store(uint32(length))
}

// setSure tells the client whether the command is sure for the queue pair with this handle.
func (a *Arena) setSure(handle uint32, sure bool) {
	if handle >= protocol.SureHandles {
		return
	}
	w := shared64(a.mem, protocol.SureBits+int(handle/64)*8)
	if bit := uint64(1) << (handle % 64); sure {
		w.Or(bit)
	} else {
		w.And(^bit)
	}
}

// publish tells the client what it may do with the queue pair without waiting for an answer.
func (q *QP) publish() {
	if q.session.Arena.lost {
		return
	}
	state := q.tr.State()
	q.session.Arena.setReady(q.handle, !q.gone && q.CanPost())
	q.session.Arena.setSure(q.handle, !q.gone && q.typ == ib.RC && (state == ib.StateReset || state == ib.StateInit))
}
