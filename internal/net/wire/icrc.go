package wire

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"

	"vrdma.dev/vrdma/internal/net/crc"
)

// A Flow computes the invariant CRC (IBA 7.8.1, annex A17.3.3) of packets from one UDP port to another.
// It is the CRC of Ethernet, started with eight bytes of ones, over IP header, UDP header and packet.
// Fields that may change on the path are replaced by ones:
//
//	IPv4: type of service, time to live, header checksum
//	IPv6: traffic class, flow label, hop limit
//	UDP:  checksum
//	BTH:  the byte with FECN and BECN
//
// A UDP socket does not show one covered field of the IPv4 header, the identification; see Check. A
// Flow is working storage of the sender or receiver and is set again when the addresses change. It
// caches the CRC of the headers up to the BTH for the last packet length, because the next packet mostly
// has the same length.
type Flow struct {
	head   [onesSize + IPv6Size + UDPSize]byte
	ip     int    // offset of the IP header in head; the bytes before it count only as ones
	length int    // packet length for which state is valid
	state  uint32 // CRC state after the UDP header, with identification 0
}

const (
	onesSize = 8
	udpStart = onesSize + IPv6Size // offset in head, for both versions of IP
)

// Set makes f compute the ICRCs of packets from src to dst. Both are IPv4 or both IPv6.
func (f *Flow) Set(src, dst netip.AddrPort) {
	for i := range f.head {
		f.head[i] = 0xff
	}
	f.length = -1
	if src.Addr().Unmap().Is4() {
		f.ip = udpStart - IPv4Size
		h := IPv4(f.head[f.ip:])
		h.Init()
		h.SetTOS(0xff)
		h.SetTTL(0xff)
		h.SetChecksum(0xffff)
		h.SetFragment(DontFragment)
		h.SetSrc(src.Addr().Unmap().As4())
		h.SetDst(dst.Addr().Unmap().As4())
	} else {
		f.ip = onesSize
		h := IPv6(f.head[f.ip:])
		h.Init()
		h.SetTrafficClass(0xff)
		h.SetFlowLabel(0xfffff)
		h.SetHopLimit(0xff)
		h.SetSrc(src.Addr().As16())
		h.SetDst(dst.Addr().As16())
	}
	u := UDP(f.head[udpStart:])
	u.SetSrcPort(src.Port())
	u.SetDstPort(dst.Port())
}

// IsIPv4 reports whether the flow is IPv4, whose packets have an identification.
func (f *Flow) IsIPv4() bool { return f.ip != onesSize }

// Sum computes the ICRC of p in an IPv4 packet with identification id.
func (f *Flow) Sum(p Packet, id uint16) uint32 {
	if len(p.data) != f.length {
		f.measure(len(p.data))
	}
	s := f.state
	if f.IsIPv4() {
		s ^= shifted[behindID+1][id>>8] ^ shifted[behindID][id&0xff]
	}
	s = behindBTH(s, p.data, p.BTH().PSN())
	return crc.Ethernet(^s, p.data[BTHSize:len(p.data)-ICRCSize])
}

// behindBTH returns the CRC state s continued over the BTH b with this PSN.
func behindBTH(s uint32, b BTH, psn uint32) uint32 {
	b = b[:BTHSize]
	s ^= binary.LittleEndian.Uint32(b)
	return shifted[11][byte(s)] ^ shifted[10][byte(s>>8)] ^ shifted[9][byte(s>>16)] ^ shifted[8][s>>24] ^
		shifted[7][0xff] ^ shifted[6][b[5]] ^ shifted[5][b[6]] ^ shifted[4][b[7]] ^
		shifted[3][b[8]] ^ shifted[2][byte(psn>>16)] ^ shifted[1][byte(psn>>8)] ^ shifted[0][byte(psn)]
}

// measure computes the CRC state after the headers of a packet of n bytes.
func (f *Flow) measure(n int) {
	f.length = n
	n += UDPSize
	if f.IsIPv4() {
		IPv4(f.head[f.ip:]).SetTotalLength(IPv4Size + n)
	} else {
		IPv6(f.head[f.ip:]).SetPayloadLength(n)
	}
	UDP(f.head[udpStart:]).SetLength(n)
	f.state = ^crc32.ChecksumIEEE(f.head[f.ip-onesSize:])
}

// behindID is the number of bytes from the end of the identification to the BTH.
const behindID = IPv4Size - ipv4ID - 2 + UDPSize

// shifted[n][b] is the contribution of the byte b, followed by n zero bytes, to a CRC. hash/crc32 would
// process twelve bytes one after the other; with these tables the twelve lookups are independent.
var shifted = shiftedTables()

func shiftedTables() (t [behindID + BTHSize + 2][256]uint32) {
	t[0] = *crc32.IEEETable
	for n := 1; n < len(t); n++ {
		for b, v := range t[n-1] {
			t[n][b] = v>>8 ^ crc32.IEEETable[byte(v)]
		}
	}
	return t
}

// Seal sets the ICRC of p, which will be sent with identification id.
func (f *Flow) Seal(p Packet, id uint16) { p.SetICRC(f.Sum(p, id)) }

// Check reports whether p's ICRC is correct for some identification, and returns that identification.
// With an unknown identification this is only a 16-bit check; a caller that knows the identifications of
// its peer should compare id. A correct guess is faster. IPv6 has no identification, and id is 0.
//
// A CRC is linear. So the received ICRC differs from the one computed with the guess by the CRC of a
// short string: the difference of the identifications, and zeros for the bytes that follow it in the
// packet. Undoing these zeros leaves the difference in the low 16 bits if the packet is intact, and bits
// elsewhere otherwise.
func (f *Flow) Check(p Packet, guess uint16) (id uint16, ok bool) {
	if !f.IsIPv4() {
		return 0, f.Sum(p, 0) == p.ICRC()
	}
	diff := f.Sum(p, guess) ^ p.ICRC()
	if diff == 0 {
		return guess, true
	}
	if len(p.data) > MaxPacket {
		return 0, false
	}
	behind := IPv4Size - ipv4ID + UDPSize + len(p.data) - ICRCSize // bytes from the identification on
	diff = multiply(diff, backwards[behind/4])
	if diff>>16 != 0 {
		return 0, false
	}
	// The CRC is bit-reversed, so the first byte is the lowest.
	var b [2]byte
	binary.LittleEndian.PutUint16(b[:], uint16(diff))
	return guess ^ binary.BigEndian.Uint16(b[:]), true
}

// backwards[n] is x to the power of -32n modulo the CRC's polynomial. The packet length is a multiple of
// four bytes, and so is the distance from the identification to the end.
var backwards = powers()

const powersNeeded = (IPv4Size+UDPSize+MaxPacket)/4 + 1

func powers() (t [powersNeeded]uint32) {
	p := uint32(1 << 31) // x to the power of 0: the highest bit is the lowest power
	for i := range t {
		t[i] = p
		for range 32 {
			// Undo one multiplication by x, which is a right shift that adds the polynomial when a
			// one bit falls out.
			if p&(1<<31) != 0 {
				p = (p^crc32.IEEE)<<1 | 1
			} else {
				p <<= 1
			}
		}
	}
	return t
}

// multiply multiplies two polynomials modulo the CRC's polynomial.
func multiply(a, b uint32) uint32 {
	p := uint32(0)
	for range 32 {
		p ^= b & uint32(int32(a)>>31)
		a <<= 1
		b = b>>1 ^ crc32.IEEE&-(b&1)
	}
	return p
}
