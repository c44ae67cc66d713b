package wire

import (
	"encoding/binary"
	"strings"
)

// Hello is the MAD by which vrdma hosts recognise each other. Its class is a vendor class with an OUI
// (IBA 16.5), so that no other class can be confused with it. A Get is the question and a GetResp the
// answer; both have the same layout and describe their sender.
//
//	 0  common header; class ClassHello, version 1, attribute AttributeHello
//	24  RMPP header, zero
//	37  OUI
//	40  nonce of the question, 8 bytes, the same in the answer
//	48  role: 'Q' in a question, 'A' in an answer
//	49  protocol of the sender
//	52  features of the sender, 4 bytes
//	56  instance of the sender, 8 bytes: changes at every start
//	64  challenge, 8 bytes, in an answer: 0, or the nonce of a question to the asking host
//	72  version of the sender, text of up to 32 bytes
//	104 number of source ports, 2 bytes; 0: the sender does not say from which ports it sends
//	106 source ports, 2 bytes each: the sender's packets from this address have no others
//
// The Linux kernel answers a Get of an unknown class with the same bytes, a status and the method
// GetResp. The role distinguishes that from a real answer.
//
// A later protocol keeps these fields and appends others. A host uses only features that both sides
// announce.
type Hello []byte

const (
	helloOUI       = 37
	helloNonce     = 40
	helloRole      = 48
	helloProtocol  = 49
	helloFeatures  = 52
	helloInstance  = 56
	helloChallenge = 64
	helloVersion   = 72
	helloEnd       = 104
	helloNumPorts  = 104
	helloPorts     = 106
)

// MaxHelloPorts is the maximum number of source ports in a Hello.
const MaxHelloPorts = 64

const (
	// ClassHello is a vendor class with OUI.
	ClassHello = ClassVendor2 + 0x0b
	// AttributeHello is the only attribute of the class.
	AttributeHello = 1
	// HelloProtocol is the protocol version of this package.
	HelloProtocol = 1

	helloClassVersion = 1
	roleQuestion      = 'Q'
	roleAnswer        = 'A'
)

// ouiHello has the locally administered bit, so it is not assigned to any vendor.
const ouiHello = "VRD"

// Features that a host announces: extensions that it understands in received packets.
const (
	// FeatureRepair: a sequence NAK has the end of the missing range in its MSN, a NAK with code 31
	// names a further gap, and the host stores packets that arrive out of order.
	FeatureRepair = 1 << iota
	// FeaturePacedReads: the host requests READs in pieces that fit its buffers.
	FeaturePacedReads
	// FeatureShortIDs: the IPv4 identifications of the host's packets are below 128.
	FeatureShortIDs
	// FeatureFiller: packets to the host may have filler, see BTH.Filler.
	FeatureFiller
	// FeatureLongFiller: packets may have more filler than MaxFiller, see longFiller.
	FeatureLongFiller
)

// Init makes h a question.
func (h Hello) Init(tid, nonce uint64) {
	m := MAD(h)
	m.Init(ClassHello, helloClassVersion)
	m.SetMethod(MethodGet)
	m.SetAttribute(AttributeHello)
	m.SetTID(tid)
	copy(h[helloOUI:], ouiHello)
	binary.BigEndian.PutUint64(h[helloNonce:], nonce)
	h[helloRole] = roleQuestion
}

// InitAnswer makes h the answer to question q.
func (h Hello) InitAnswer(q Hello) {
	h.Init(MAD(q).TID(), q.Nonce())
	h.SetAnswer()
}

// SetAnswer turns a question into an answer.
func (h Hello) SetAnswer() {
	MAD(h).SetMethod(MethodGetResp)
	h[helloRole] = roleAnswer
}

// Hello returns the hello in m. It returns nil for another class, OUI, attribute or length, and for a
// malformed message.
func (m MAD) Hello() Hello {
	if !m.IsValid() || m.Class() != ClassHello || m.ClassVersion() != helloClassVersion || m.Attribute() != AttributeHello ||
		string(m[helloOUI:][:len(ouiHello)]) != ouiHello || m[helloProtocol] == 0 {
		return nil
	}
	return Hello(m)
}

// IsQuestion reports whether h is a question.
func (h Hello) IsQuestion() bool {
	return MAD(h).Method() == MethodGet && MAD(h).Status() == 0 && h[helloRole] == roleQuestion
}

// IsAnswer reports whether h is a vrdma host's answer.
func (h Hello) IsAnswer() bool {
	return MAD(h).Method() == MethodGetResp && MAD(h).Status() == 0 && h[helloRole] == roleAnswer
}

// IsRefusal reports whether h is a question returned by a host that does not know the class.
func (h Hello) IsRefusal() bool {
	return MAD(h).Method() == MethodGetResp && MAD(h).Status() != 0 && h[helloRole] == roleQuestion
}

// Nonce returns the random number of the question.
func (h Hello) Nonce() uint64 { return binary.BigEndian.Uint64(h[helloNonce:]) }

// Protocol returns the protocol version of the sender.
func (h Hello) Protocol() uint8 { return h[helloProtocol] }

// Features returns the features that the sender announces.
func (h Hello) Features() uint32 { return binary.BigEndian.Uint32(h[helloFeatures:]) }

// Instance returns the random number that the sender chose at its start.
func (h Hello) Instance() uint64 { return binary.BigEndian.Uint64(h[helloInstance:]) }

// Challenge returns the nonce of a question inside an answer; 0 means none.
func (h Hello) Challenge() uint64 { return binary.BigEndian.Uint64(h[helloChallenge:]) }

// SetChallenge adds a question to an answer.
func (h Hello) SetChallenge(v uint64) { binary.BigEndian.PutUint64(h[helloChallenge:], v) }

// AppendPorts appends the source ports of the sender to list: none if the sender does not say.
func (h Hello) AppendPorts(list []uint16) []uint16 {
	n := int(binary.BigEndian.Uint16(h[helloNumPorts:]))
	if n > MaxHelloPorts {
		return list
	}
	for i := range n {
		list = append(list, binary.BigEndian.Uint16(h[helloPorts+2*i:]))
	}
	return list
}

// SetPorts sets the source ports of the sender. More than MaxHelloPorts are not announced.
func (h Hello) SetPorts(list []uint16) {
	if len(list) > MaxHelloPorts {
		return
	}
	binary.BigEndian.PutUint16(h[helloNumPorts:], uint16(len(list)))
	for i, p := range list {
		binary.BigEndian.PutUint16(h[helloPorts+2*i:], p)
	}
}

// Version returns the sender's version, reduced to printable characters.
func (h Hello) Version() string {
	text := string(h[helloVersion:helloEnd])
	if i := strings.IndexByte(text, 0); i >= 0 {
		text = text[:i]
	}
	return strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return -1
		}
		return r
	}, text)
}

// SetSender sets the fields that describe the sender.
func (h Hello) SetSender(features uint32, instance uint64, version string) {
	h[helloProtocol] = HelloProtocol
	binary.BigEndian.PutUint32(h[helloFeatures:], features)
	binary.BigEndian.PutUint64(h[helloInstance:], instance)
	clear(h[helloVersion:helloEnd])
	copy(h[helloVersion:helloEnd], version)
}
