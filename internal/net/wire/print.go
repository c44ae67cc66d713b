package wire

import (
	"fmt"
	"strings"
)

// String returns p in one line that begins like Wireshark's summary.
func (p Packet) String() string {
	if p.format == nil {
		return "no packet"
	}
	var s strings.Builder
	b := p.BTH()
	fmt.Fprintf(&s, "%s QP=0x%06x PSN=%d", p.format.Name, b.DestQP(), b.PSN())
	p.printFlags(&s, b)
	p.printRequest(&s)
	p.printResponse(&s)
	if n := len(p.Payload()); p.format.HasPayload() || n > 0 && p.format.Operation != Notify {
		fmt.Fprintf(&s, " payload=%d", n)
		if k := p.Filler(); k > 0 {
			fmt.Fprintf(&s, " filler=%d", k)
		}
	}
	if m := p.MAD(); m != nil {
		fmt.Fprintf(&s, " %v", m)
	}
	return s.String()
}

func (p Packet) printFlags(s *strings.Builder, b BTH) {
	if k := b.PKey(); k != 0xffff {
		fmt.Fprintf(s, " P_Key=0x%04x", k)
	}
	for _, f := range []struct {
		set  bool
		name string
	}{
		{b.AckReq(), "ackreq"}, {b.Solicited(), "solicited"}, {b.Migrated(), "migrated"}, {b.FECN(), "fecn"}, {b.BECN(), "becn"},
	} {
		if f.set {
			s.WriteByte(' ')
			s.WriteString(f.name)
		}
	}
}

func (p Packet) printRequest(s *strings.Builder) {
	if h := p.DETH(); h != nil {
		fmt.Fprintf(s, " from QP=0x%06x Q_Key=0x%08x", h.SrcQP(), h.QKey())
	}
	if h := p.FETH(); h != nil {
		fmt.Fprintf(s, " flush=%d/%d", h.Placement(), h.Selectivity())
	}
	if h := p.RETH(); h != nil {
		fmt.Fprintf(s, " va=0x%x rkey=0x%08x length=%d", h.VA(), h.RKey(), h.Length())
	}
	if h := p.AtomicETH(); h != nil {
		fmt.Fprintf(s, " va=0x%x rkey=0x%08x swap=0x%x compare=0x%x", h.VA(), h.RKey(), h.Swap(), h.Compare())
	}
	if h := p.ImmDt(); h != nil {
		fmt.Fprintf(s, " imm=0x%08x", h.Data())
	}
	if h := p.IETH(); h != nil {
		fmt.Fprintf(s, " invalidate=0x%08x", h.RKey())
	}
}

func (p Packet) printResponse(s *strings.Builder) {
	if h := p.AETH(); h != nil {
		fmt.Fprintf(s, " %s MSN=%d", syndromeName(h.Syndrome()), h.MSN())
	}
	if h := p.AtomicAckETH(); h != nil {
		fmt.Fprintf(s, " orig=0x%x", h.Orig())
	}
}

var nakNames = map[uint8]string{
	NAKSequence: "sequence error", NAKInvalid: "invalid request", NAKAccess: "remote access error",
	NAKOperation: "remote operational error", NAKInvalidRD: "invalid RD request",
}

func syndromeName(v uint8) string {
	switch v & SyndromeMask {
	case SyndromeACK:
		return "ACK"
	case SyndromeRNR:
		return fmt.Sprintf("RNR NAK timer=%d", v&^SyndromeMask)
	}
	if n, ok := nakNames[v]; ok {
		return "NAK " + n
	}
	return fmt.Sprintf("syndrome=0x%02x", v)
}
