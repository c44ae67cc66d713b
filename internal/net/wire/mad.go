package wire

import (
	"encoding/binary"
	"fmt"
)

// MAD is a management datagram of 256 bytes. All classes share the first 24 bytes (IBA 13.4.2).
type MAD []byte

const (
	// MADSize is the length of every MAD.
	MADSize = 256
	// MADHeaderSize is the length of the common header.
	MADHeaderSize = 24
	// GSIQP is the number of the general services queue pair, which the connection manager uses.
	GSIQP = 1
	// GSIQKey is the queue key of queue pair 1.
	GSIQKey = 0x80010000
)

const (
	madBaseVersion   = 0
	madClass         = 1
	madClassVersion  = 2
	madMethod        = 3
	madStatus        = 4
	madClassSpecific = 6
	madTID           = 8
	madAttribute     = 16
	madModifier      = 20
)

// Management classes.
const (
	ClassSubnetAdm   = 0x03
	ClassPerformance = 0x04
	ClassCM          = 0x07
	ClassVendor1     = 0x09 // first vendor class without OUI
	ClassVendor2     = 0x30 // first vendor class with OUI
)

// Methods.
const (
	MethodGet      = 0x01
	MethodSet      = 0x02
	MethodSend     = 0x03
	MethodGetResp  = 0x81
	MethodResponse = 0x80 // set in responses
)

// IsValid reports whether m has the right length and base version 1, the only one.
func (m MAD) IsValid() bool { return len(m) == MADSize && m[madBaseVersion] == 1 }

// MAD returns the management datagram in p, or nil if p carries none.
func (p Packet) MAD() MAD {
	if p.format == nil || p.format.Service != UD || p.BTH().DestQP() != GSIQP {
		return nil
	}
	if m := MAD(p.Payload()); m.IsValid() {
		return m
	}
	return nil
}

// Init clears m and sets its class, with base version 1.
func (m MAD) Init(class, version uint8) {
	clear(m)
	m[madBaseVersion], m[madClass], m[madClassVersion] = 1, class, version
}

// Class returns the management class.
func (m MAD) Class() uint8 { return m[madClass] }

// SetClass sets the management class.
func (m MAD) SetClass(v uint8) { m[madClass] = v }

// ClassVersion returns the version of the class.
func (m MAD) ClassVersion() uint8 { return m[madClassVersion] }

// SetClassVersion sets the version of the class.
func (m MAD) SetClassVersion(v uint8) { m[madClassVersion] = v }

// Method returns the method: get, set, send or a response.
func (m MAD) Method() uint8 { return m[madMethod] }

// SetMethod sets the method.
func (m MAD) SetMethod(v uint8) { m[madMethod] = v }

// Status returns the status of a response.
func (m MAD) Status() uint16 { return binary.BigEndian.Uint16(m[madStatus:]) }

// SetStatus sets the status.
func (m MAD) SetStatus(v uint16) { binary.BigEndian.PutUint16(m[madStatus:], v) }

// ClassSpecific returns the class-specific field.
func (m MAD) ClassSpecific() uint16 { return binary.BigEndian.Uint16(m[madClassSpecific:]) }

// SetClassSpecific sets the class specific field.
func (m MAD) SetClassSpecific(v uint16) { binary.BigEndian.PutUint16(m[madClassSpecific:], v) }

// TID returns the transaction ID.
func (m MAD) TID() uint64 { return binary.BigEndian.Uint64(m[madTID:]) }

// SetTID sets the transaction ID.
func (m MAD) SetTID(v uint64) { binary.BigEndian.PutUint64(m[madTID:], v) }

// Attribute returns the attribute; in the connection manager it is the message type.
func (m MAD) Attribute() uint16 { return binary.BigEndian.Uint16(m[madAttribute:]) }

// SetAttribute sets the attribute.
func (m MAD) SetAttribute(v uint16) { binary.BigEndian.PutUint16(m[madAttribute:], v) }

// Modifier returns the attribute modifier.
func (m MAD) Modifier() uint32 { return binary.BigEndian.Uint32(m[madModifier:]) }

// SetModifier sets the modifier.
func (m MAD) SetModifier(v uint32) { binary.BigEndian.PutUint32(m[madModifier:], v) }

// Data returns the bytes after the common header.
func (m MAD) Data() []byte { return m[MADHeaderSize:MADSize] }

// String returns a short description of m.
func (m MAD) String() string {
	if !m.IsValid() {
		return fmt.Sprintf("invalid MAD of %d bytes", len(m))
	}
	if m.Class() == ClassCM {
		return fmt.Sprintf("CM: %v tid=0x%x", CMMessage(m.Attribute()), m.TID())
	}
	return fmt.Sprintf("MAD class=0x%02x method=0x%02x attribute=0x%04x tid=0x%x", m.Class(), m.Method(), m.Attribute(), m.TID())
}
