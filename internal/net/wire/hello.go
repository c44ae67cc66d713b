package wire

import (
	"encoding/binary"
	"strings"
)

// Hello is the MAD by which vrdma hosts recognise each other: of a vendor class of the
// range that begins with an OUI (IBA 16.5), so that it cannot be taken for anybody
// else's. A Get asks and a GetResp answers; both have the same layout and say who sends
// them.
//
//	 0  common header; class ClassHello, version 1, attribute AttributeHello
//	24  RMPP header, zero
//	37  OUI
//	40  nonce of the question, 8 bytes, the same in the answer
//	48  role: 'Q' in a question, 'A' in an answer
//	49  protocol of the sender
//	52  features of the sender, 4 bytes
//	56  instance of the sender, 8 bytes: changes when it is started
//	64  challenge, 8 bytes, in an answer: 0, or the nonce of a question to who asked
//	72  version of the sender, text of up to 32 bytes
//
// The Linux kernel answers a Get of a class that it does not know with the same bytes, a
// status and the method GetResp. The role tells that from an answer.
//
// A later protocol keeps these fields and adds behind them. A feature that one side does
// not know is not used.
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
)

const (
	// ClassHello is a vendor class with OUI.
	ClassHello = ClassVendor2 + 0x0b
	// AttributeHello is the only attribute of the class.
	AttributeHello = 1
	// HelloProtocol is the protocol that we speak.
	HelloProtocol = 1

	helloClassVersion = 1
	roleQuestion      = 'Q'
	roleAnswer        = 'A'
)

// ouiHello has the bit of local administration: nobody's, and ours by use.
const ouiHello = "VRD"

// Features that a host announces: what it understands when others send it.
const (
	// FeatureRepair: a sequence NAK tells in its MSN where what is missing ends, a
	// NAK with code 31 names a further gap, and what arrives out of order is kept.
	FeatureRepair = 1 << iota
	// FeaturePacedReads: READs are asked for in pieces that fit the asker's buffers.
	FeaturePacedReads
	// FeatureShortIDs: the IPv4 identifications of its packets are below 128.
	FeatureShortIDs
	// FeatureFiller: packets may have filler, see BTH.Filler.
	FeatureFiller
	// FeatureLongFiller: they may have more of it than the BTH can say, see longFiller.
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

// SetAnswer makes a question an answer.
func (h Hello) SetAnswer() {
	MAD(h).SetMethod(MethodGetResp)
	h[helloRole] = roleAnswer
}

// Hello is the hello in m, nil if it is none: another class, OUI, attribute or length, or
// not well-formed.
func (m MAD) Hello() Hello {
	if !m.IsValid() || m.Class() != ClassHello || m.ClassVersion() != helloClassVersion || m.Attribute() != AttributeHello ||
		string(m[helloOUI:][:len(ouiHello)]) != ouiHello || m[helloProtocol] == 0 {
		return nil
	}
	return Hello(m)
}

// IsQuestion reports whether h asks.
func (h Hello) IsQuestion() bool {
	return MAD(h).Method() == MethodGet && MAD(h).Status() == 0 && h[helloRole] == roleQuestion
}

// IsAnswer reports whether h is a vrdma host's answer.
func (h Hello) IsAnswer() bool {
	return MAD(h).Method() == MethodGetResp && MAD(h).Status() == 0 && h[helloRole] == roleAnswer
}

// IsRefusal reports whether h is a question that came back from somebody who does not know
// the class.
func (h Hello) IsRefusal() bool {
	return MAD(h).Method() == MethodGetResp && MAD(h).Status() != 0 && h[helloRole] == roleQuestion
}

// Nonce is the number that the asker made up.
func (h Hello) Nonce() uint64 { return binary.BigEndian.Uint64(h[helloNonce:]) }

// Protocol is what the sender speaks.
func (h Hello) Protocol() uint8 { return h[helloProtocol] }

// Features are what the sender announces.
func (h Hello) Features() uint32 { return binary.BigEndian.Uint32(h[helloFeatures:]) }

// Instance is a number that the sender made up when it was started.
func (h Hello) Instance() uint64 { return binary.BigEndian.Uint64(h[helloInstance:]) }

// Challenge is a question in an answer; 0: none.
func (h Hello) Challenge() uint64 { return binary.BigEndian.Uint64(h[helloChallenge:]) }

// SetChallenge makes an answer a question too.
func (h Hello) SetChallenge(v uint64) { binary.BigEndian.PutUint64(h[helloChallenge:], v) }

// Version is the sender's version, of which only what can be printed is kept.
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

// SetSender says who sends h.
func (h Hello) SetSender(features uint32, instance uint64, version string) {
	h[helloProtocol] = HelloProtocol
	binary.BigEndian.PutUint32(h[helloFeatures:], features)
	binary.BigEndian.PutUint64(h[helloInstance:], instance)
	clear(h[helloVersion:helloEnd])
	copy(h[helloVersion:helloEnd], version)
}
