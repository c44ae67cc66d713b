package transport

import "vrdma.dev/vrdma/internal/ib"

// packetsOf returns the number of packets, and so of PSNs, that n bytes take.
func packetsOf(n, mtu uint32) uint32 {
	if n <= mtu {
		return 1
	}
	return (n-1)/mtu + 1 // n may come from a peer: n+mtu could overflow
}

// AETH syndromes: bits 6:5 distinguish ACK, RNR NAK and NAK. The low five bits are the credit count, the
// timer code or the NAK code.
const (
	synTypeMask = 0xe0
	synAck      = 0x00
	synRNR      = 0x20
	synNak      = 0x60

	// AckUnlimited is an ACK without end-to-end credits.
	AckUnlimited = synAck | 0x1f
	// RNRNak is combined with the responder's timer code.
	RNRNak = synRNR

	NakSequence  = synNak
	NakInvalid   = synNak | 1
	NakAccess    = synNak | 2
	NakOperation = synNak | 3
	NakInvalidRD = synNak | 4
)

// rnrDelay maps the five-bit RNR timer codes to units of 10 microseconds (IBA table 45). Code 0 is the
// longest.
var rnrDelay = [32]uint32{
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

// RNRDelay returns the time that a requester waits after an RNR NAK with this timer code.
func RNRDelay(code uint8) ib.Time { return ib.Time(rnrDelay[code&0x1f]) * 10_000 }

// AckTimeout returns the local ACK timeout of a five-bit code: 4.096 µs × 2^code. Code 0 disables the timer.
func AckTimeout(code uint8) ib.Time {
	if code &= 0x1f; code == 0 {
		return 0
	}
	return 4096 << code
}
