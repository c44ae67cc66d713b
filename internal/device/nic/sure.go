package nic

import (
	"encoding/binary"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/ib"
)

// A client need not wait for a command that is sure to be accepted: it leaves the command in its mailbox,
// and goes on (shim/protocol.h). There is one such command: MODIFY_QP of a queue pair of type RC or UC, which is
// in RESET or INIT, to INIT, with the attributes that this takes. librdmacm makes it twice for each
// connection. Nothing that another program does depends on it, and the client sees it with its next
// command of the same device, before which it is run.

// initMask are the attributes of that command.
const initMask = abi.QPMaskState | abi.QPMaskPKeyIndex | abi.QPMaskPort | abi.QPMaskAccessFlags

// sureValue is that command. sureMask has ones for the bits of it that are compared.
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

// Sure reports whether a command is the sure one.
func Sure(command []byte) bool {
	if len(command) != len(sureValue) {
		return false
	}
	for i, b := range command {
		if b&sureMask[i] != sureValue[i]&sureMask[i] {
			return false
		}
	}
	return true
}

// describeSure writes the description of the sure command to the arena, for the client.
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
	shared32(a.mem, protocol.SureLength).Store(uint32(length))
}

// setSure sets or clears the bit in the arena that says that the command is sure for the queue pair
// with this handle.
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

// publish writes to the arena which operations of the queue pair need no answer of the daemon.
func (q *QP) publish() {
	if q.session.Arena.lost {
		return
	}
	state := q.tr.State()
	q.session.Arena.setReady(q.handle, !q.gone && q.CanPost())
	q.session.Arena.setSure(q.handle, !q.gone && q.typ != ib.UD && (state == ib.StateReset || state == ib.StateInit))
}
