package wire

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"

	"vrdma.dev/vrdma/internal/net/crc"
)

// A Flow computes the invariant CRC (IBA 7.8.1, annex A17.3.3) of packets that go from
// one UDP port to another. It is the CRC of Ethernet, begun with eight bytes of ones and
// taken over IP header, UDP header and packet, with all that may change on the way
// replaced by ones:
//
//	IPv4: type of service, time to live, header checksum
//	IPv6: traffic class, flow label, hop limit
//	UDP:  checksum
//	BTH:  the byte with FECN and BECN
//
// What remains of IPv4's header that a UDP socket does not show is the identification;
// see Check. A Flow is working storage of whoever sends or receives, to be set up again
// when the addresses change. It remembers the CRC of the headers up to the BTH for packets
// of the length seen last, because the next one mostly has the same.
type Flow struct {
	head   [onesSize + IPv6Size + UDPSize]byte
	ip     int    // where the IP header begins in head; what is before it counts for nothing but ones
	length int    // of the packet that state is for
	state  uint32 // of the CRC behind the UDP header, with identification 0
}

const (
	onesSize = 8
	udpStart = onesSize + IPv6Size // in head, whatever the version of IP
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

// IsIPv4 reports whether the flow's packets have an identification.
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

// behindBTH is the state s of a CRC, taken on over the BTH b with this PSN.
func behindBTH(s uint32, b BTH, psn uint32) uint32 {
	b = b[:BTHSize]
	s ^= binary.LittleEndian.Uint32(b)
	return shifted[11][byte(s)] ^ shifted[10][byte(s>>8)] ^ shifted[9][byte(s>>16)] ^ shifted[8][s>>24] ^
		shifted[7][0xff] ^ shifted[6][b[5]] ^ shifted[5][b[6]] ^ shifted[4][b[7]] ^
		shifted[3][b[8]] ^ shifted[2][byte(psn>>16)] ^ shifted[1][byte(psn>>8)] ^ shifted[0][byte(psn)]
}

// measure computes the state behind the headers of a packet of n bytes.
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

// behindID is how many bytes follow the identification up to the BTH.
const behindID = IPv4Size - ipv4ID - 2 + UDPSize

// shifted[n][b] is what the byte b and n bytes of zeros add to a CRC. hash/crc32 takes
// twelve bytes one after the other; with these tables it is twelve lookups at once.
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

// Seal sets the ICRC of p, which will leave with identification id.
func (f *Flow) Seal(p Packet, id uint16) { p.SetICRC(f.Sum(p, id)) }

// Check reports whether p's ICRC is right for some identification, and for which. With
// the identification unknown what is left is a check of 16 bits; a caller that knows
// what its peer would use should look at id. A good guess saves time. IPv6 has no
// identification, and id is then 0.
//
// A CRC is linear: the difference between the ICRC received and the one computed with
// the guess is the CRC of the difference of the identifications followed by as many
// zeros as there are bytes behind it. Running those zeros backwards leaves the
// difference in the low 16 bits, if the packet is sound, and bits elsewhere otherwise.
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
	behind := IPv4Size - ipv4ID + UDPSize + len(p.data) - ICRCSize // from the identification on
	diff = multiply(diff, backwards[behind/4])
	if diff>>16 != 0 {
		return 0, false
	}
	// The polynomial's low bits come first, so the first byte is the lowest.
	var b [2]byte
	binary.LittleEndian.PutUint16(b[:], uint16(diff))
	return guess ^ binary.BigEndian.Uint16(b[:]), true
}

// backwards[n] is x to the power of -32n modulo the CRC's polynomial. All packets are a
// multiple of four bytes long, and so is what follows the identification.
var backwards = powers()

const powersNeeded = (IPv4Size+UDPSize+MaxPacket)/4 + 1

func powers() (t [powersNeeded]uint32) {
	p := uint32(1 << 31) // x to the power of 0: the highest bit is the lowest power
	for i := range t {
		t[i] = p
		for range 32 {
			// Undo one multiplication by x, which is a shift to the right
			// that brings the polynomial in when a bit falls out.
			if p&(1<<31) != 0 {
				p = (p^crc32.IEEE)<<1 | 1
			} else {
				p <<= 1
			}
		}
	}
	return t
}

// multiply multiplies two polynomials modulo that of the CRC.
func multiply(a, b uint32) uint32 {
	p := uint32(0)
	for range 32 {
		p ^= b & uint32(int32(a)>>31)
		a <<= 1
		b = b>>1 ^ crc32.IEEE&-(b&1)
	}
	return p
}
