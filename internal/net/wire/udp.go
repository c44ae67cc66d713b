package wire

import "encoding/binary"

// UDP is a UDP header.
type UDP []byte

const (
	// UDPSize is the length of a UDP header.
	UDPSize = 8
	// Port is the destination port of every RoCEv2 packet.
	Port = 4791
)

const (
	udpSrc      = 0
	udpDst      = 2
	udpLength   = 4
	udpChecksum = 6
)

// IsValid reports whether u is a header followed by its complete datagram.
func (u UDP) IsValid() bool {
	return len(u) >= UDPSize && u.Length() >= UDPSize && u.Length() <= len(u)
}

// SrcPort returns the source port, which only spreads flows over paths.
func (u UDP) SrcPort() uint16 { return binary.BigEndian.Uint16(u[udpSrc:]) }

// SetSrcPort sets the source port.
func (u UDP) SetSrcPort(v uint16) { binary.BigEndian.PutUint16(u[udpSrc:], v) }

// DstPort returns the destination port.
func (u UDP) DstPort() uint16 { return binary.BigEndian.Uint16(u[udpDst:]) }

// SetDstPort sets the destination port.
func (u UDP) SetDstPort(v uint16) { binary.BigEndian.PutUint16(u[udpDst:], v) }

// Length returns the length of header and payload.
func (u UDP) Length() int { return int(binary.BigEndian.Uint16(u[udpLength:])) }

// SetLength sets the length of header and payload.
func (u UDP) SetLength(n int) { binary.BigEndian.PutUint16(u[udpLength:], uint16(n)) }

// Checksum returns the checksum; 0 means none, and rxe sends none.
func (u UDP) Checksum() uint16 { return binary.BigEndian.Uint16(u[udpChecksum:]) }

// SetChecksum sets the checksum.
func (u UDP) SetChecksum(v uint16) { binary.BigEndian.PutUint16(u[udpChecksum:], v) }

// Payload returns the bytes after the header. IsValid must hold.
func (u UDP) Payload() []byte { return u[UDPSize:u.Length()] }
