package wire

import (
	"encoding/binary"
	"hash/crc32"

	"vrdma.dev/vrdma/internal/net/crc"
)

// A Series is a run of consecutive middle packets of a message. They have equal lengths, only a BTH before
// the payload, and BTHs that differ only in the PSN, which counts up. Most packets of a long message are
// of this kind. Making or checking one of them costs a fraction of Make, Parse and the methods of Flow.
type Series struct {
	p     Packet // the previous packet
	first uint64 // first 8 bytes of the BTH
	flags uint32 // the byte with the acknowledge request, shifted to its position before the PSN
	psn   uint32 // PSN of the previous packet
	state uint32 // CRC state after a BTH with PSN 0, with identification 0
	ids   bool   // packets have identifications (IPv4)
	tail  uint32 // CRC state after the filler, starting from state 0
}

const psnMask = 1<<24 - 1

// Series starts a series after p, a packet of the flow that has been made or checked. ok reports whether
// others can follow p, which requires a middle packet.
func (f *Flow) Series(p Packet) (s Series, ok bool) {
	// Reserved bits without filler come from a foreign host, and its next packet may have both.
	if p.format.Position != Middle || p.format.size != BTHSize || p.BTH().Filler() != p.Filler() {
		return s, false
	}
	if len(p.data) != f.length {
		f.measure(len(p.data))
	}
	last := binary.BigEndian.Uint32(p.data[bthAckReq:])
	s = Series{
		p: p, first: binary.LittleEndian.Uint64(p.data), flags: last &^ psnMask, psn: last & psnMask,
		state: behindBTH(f.state, p.data, 0), ids: f.IsIPv4(),
	}
	if p.tail > 0 {
		s.tail = ^crc32.Update(^uint32(0), crc32.IEEETable, s.filler(p.data))
	}
	return s, true
}

// filler returns the filler of the packet with this data.
func (s *Series) filler(data []byte) []byte {
	end := len(data) - ICRCSize
	return data[end-s.p.tail : end]
}

// begin returns the CRC state after the BTH of the packet with this PSN and identification id.
func (s *Series) begin(psn uint32, id uint16) uint32 {
	v := s.state ^ shifted[2][psn>>16] ^ shifted[1][byte(psn>>8)] ^ shifted[0][byte(psn)]
	if s.ids {
		v ^= shifted[behindID+BTHSize+1][id>>8] ^ shifted[behindID+BTHSize][byte(id)]
	}
	return ^v
}

// sum returns the ICRC of the packet with this data, PSN and identification. Its filler equals that of the others.
func (s *Series) sum(data []byte, psn uint32, id uint16) uint32 {
	return s.behindFiller(crc.Ethernet(s.begin(psn, id), data[BTHSize:len(data)-ICRCSize-s.p.tail]), data)
}

// behindFiller returns the CRC state sum continued over the filler of the packet with this data. For so few
// bytes table lookups are faster than folding.
func (s *Series) behindFiller(sum uint32, data []byte) uint32 {
	n := s.p.tail
	if n == 0 {
		return sum
	}
	if n < 4 || n > len(shifted) {
		return crc32.Update(sum, crc32.IEEETable, s.filler(data))
	}
	v := ^sum
	return ^(shifted[n-1][byte(v)] ^ shifted[n-2][byte(v>>8)] ^ shifted[n-3][byte(v>>16)] ^ shifted[n-4][v>>24] ^ s.tail)
}

// Size returns the length of every packet.
func (s *Series) Size() int { return len(s.p.data) }

// Make creates the next packet at the beginning of buf, which is long enough: everything except payload and
// ICRC.
func (s *Series) Make(buf []byte) Packet {
	data := buf[:len(s.p.data)]
	s.psn = (s.psn + 1) & psnMask
	binary.LittleEndian.PutUint64(data, s.first)
	binary.BigEndian.PutUint32(data[bthAckReq:], s.flags|s.psn)
	copy(s.filler(data), s.filler(s.p.data))
	s.p.data = data
	return s.p
}

// Seal sets the ICRC of the packet made last, which will be sent with identification id.
func (s *Series) Seal(id uint16) { s.p.SetICRC(s.sum(s.p.data, s.psn, id)) }

// Fill copies the payload into the packet made last, and sets its ICRC as Seal does.
func (s *Series) Fill(payload []byte, id uint16) {
	data := s.p.data
	sum := crc.EthernetCopy(s.begin(s.psn, id), data[BTHSize:len(data)-ICRCSize-s.p.tail], payload)
	s.p.SetICRC(s.behindFiller(sum, data))
}

// Check reports whether data is the complete next packet, with identification id, and returns its payload. If
// it returns false, data may still be another valid packet.
func (s *Series) Check(data []byte, id uint16) (payload []byte, ok bool) {
	if len(data) != len(s.p.data) || len(data) < BTHSize+ICRCSize {
		return nil, false
	}
	psn := (s.psn + 1) & psnMask
	end := len(data) - ICRCSize
	if binary.LittleEndian.Uint64(data) != s.first || binary.BigEndian.Uint32(data[bthAckReq:]) != s.flags|psn ||
		string(s.filler(data)) != string(s.filler(s.p.data)) ||
		binary.LittleEndian.Uint32(data[end:]) != s.sum(data, psn, id) {
		return nil, false
	}
	s.psn = psn
	return data[BTHSize : end-s.p.tail], true
}
