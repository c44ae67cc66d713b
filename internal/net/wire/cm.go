package wire

import (
	"encoding/binary"
	"fmt"
)

// The messages of the connection manager (IBA chapter 12) are MADs of class CM and method Send. The
// attribute is the message type. Each message is a type of its own over the 232 bytes after the MAD
// header, which m.Data() returns.

const (
	// CMClassVersion is the only version of the CM class in use.
	CMClassVersion = 2
	// CMSize is the length of a message.
	CMSize = MADSize - MADHeaderSize
)

// CMMessage is the attribute of a MAD of class CM.
type CMMessage uint16

// Messages.
const (
	CMREQ     CMMessage = 0x10
	CMMRA     CMMessage = 0x11
	CMREJ     CMMessage = 0x12
	CMREP     CMMessage = 0x13
	CMRTU     CMMessage = 0x14
	CMDREQ    CMMessage = 0x15
	CMDREP    CMMessage = 0x16
	CMSIDRREQ CMMessage = 0x17
	CMSIDRREP CMMessage = 0x18
	CMLAP     CMMessage = 0x19
	CMAPR     CMMessage = 0x1a
)

var cmNames = map[CMMessage]string{
	CMREQ: "ConnectRequest", CMMRA: "MsgRcptAck", CMREJ: "ConnectReject", CMREP: "ConnectReply", CMRTU: "ReadyToUse",
	CMDREQ: "DisconnectRequest", CMDREP: "DisconnectReply", CMSIDRREQ: "ServiceIDResReq", CMSIDRREP: "ServiceIDResReqResp",
	CMLAP: "LoadAlternatePath", CMAPR: "AlternatePathResponse",
}

// String returns the message's name as in Wireshark.
func (c CMMessage) String() string {
	if s, ok := cmNames[c]; ok {
		return s
	}
	return fmt.Sprintf("message 0x%04x", uint16(c))
}

// IsCM reports whether m is a message of the connection manager.
func (m MAD) IsCM() bool {
	return m.IsValid() && m.Class() == ClassCM && m.ClassVersion() == CMClassVersion && m.Method() == MethodSend
}

// InitCM clears m and makes it a message of the connection manager.
func (m MAD) InitCM(c CMMessage, tid uint64) {
	m.Init(ClassCM, CMClassVersion)
	m.SetMethod(MethodSend)
	m.SetAttribute(uint16(c))
	m.SetTID(tid)
}

// field is the position of a number in a message: first byte, first bit in it counted from the most
// significant, and width, as in the tables of the specification.
type field struct{ at, bit, width uint }

func (f field) get(b []byte) uint32 {
	var v uint64
	end := f.bit + f.width
	for i := range (end + 7) / 8 {
		v = v<<8 | uint64(b[f.at+i])
	}
	return uint32(v >> (-end & 7) & (1<<f.width - 1))
}

func (f field) set(b []byte, v uint32) {
	end := f.bit + f.width
	n := (end + 7) / 8
	shift := -end & 7
	mask := uint64(1<<f.width-1) << shift
	bits := uint64(v) << shift & mask
	for i := n; i > 0; i-- {
		p := &b[f.at+i-1]
		*p = *p&^byte(mask) | byte(bits)
		mask, bits = mask>>8, bits>>8
	}
}

func (f field) getBool(b []byte) bool { return f.get(b) != 0 }

func (f field) setBool(b []byte, v bool) {
	if v {
		f.set(b, 1)
	} else {
		f.set(b, 0)
	}
}

func get64(b []byte, at int) uint64    { return binary.BigEndian.Uint64(b[at:]) }
func put64(b []byte, at int, v uint64) { binary.BigEndian.PutUint64(b[at:], v) }

// These fields begin every message except REQ and the two SIDR messages.
var (
	cmLocalID  = field{0, 0, 32}
	cmRemoteID = field{4, 0, 32}
)
