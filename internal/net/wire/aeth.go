package wire

import "encoding/binary"

// AETH is the acknowledge extended transport header (IBA 9.3.5).
type AETH []byte

// AETHSize is the length of an AETH.
const AETHSize = 4

const (
	aethSyndrome = 0
	aethMSN      = 1
)

// Syndromes: the upper three bits are the type of the response, the lower five are credits, a timer
// code or the NAK code.
const (
	SyndromeMask = 0xe0
	SyndromeACK  = 0x00
	SyndromeRNR  = 0x20
	SyndromeNAK  = 0x60

	NAKSequence  = SyndromeNAK
	NAKInvalid   = SyndromeNAK | 1
	NAKAccess    = SyndromeNAK | 2
	NAKOperation = SyndromeNAK | 3
	NAKInvalidRD = SyndromeNAK | 4
)

// IsValid reports whether a can be read.
func (a AETH) IsValid() bool { return len(a) >= AETHSize }

// Syndrome returns the syndrome, which distinguishes ACK, NAK and RNR NAK.
func (a AETH) Syndrome() uint8 { return a[aethSyndrome] }

// SetSyndrome sets the syndrome.
func (a AETH) SetSyndrome(v uint8) { a[aethSyndrome] = v }

// MSN returns the message sequence number: the number of messages that the responder has executed.
func (a AETH) MSN() uint32 { return uint24(a[aethMSN:]) }

// SetMSN sets the message sequence number.
func (a AETH) SetMSN(v uint32) { putUint24(a[aethMSN:], v) }

// AtomicAckETH is the header with the value that an atomic operation found in memory.
type AtomicAckETH []byte

// AtomicAckETHSize is the length of an AtomicAckETH.
const AtomicAckETHSize = 8

// IsValid reports whether a can be read.
func (a AtomicAckETH) IsValid() bool { return len(a) >= AtomicAckETHSize }

// Orig returns the former value.
func (a AtomicAckETH) Orig() uint64 { return binary.BigEndian.Uint64(a) }

// SetOrig sets the former value.
func (a AtomicAckETH) SetOrig(v uint64) { binary.BigEndian.PutUint64(a, v) }
