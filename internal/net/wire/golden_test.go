package wire

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/testkit/golden"
)

// frame is one RoCEv2 packet of a capture with its headers.
type frame struct {
	number   int // as Wireshark counts, from 1
	raw      []byte
	v4       IPv4 // nil in IPv6
	v6       IPv6
	udp      UDP
	src, dst netip.AddrPort
	packet   Packet
}

// open decodes an Ethernet frame. ok is false if it is not RoCEv2.
func open(raw []byte) (f frame, ok bool, err error) {
	f.raw = raw
	if len(raw) < 14 {
		return f, false, nil
	}
	var src, dst netip.Addr
	switch ip := raw[14:]; binary.BigEndian.Uint16(raw[12:]) {
	case 0x0800:
		f.v4 = IPv4(ip)
		if !f.v4.IsValid() || f.v4.Protocol() != ProtocolUDP {
			return f, false, nil
		}
		f.udp = UDP(f.v4.Payload())
		src, dst = netip.AddrFrom4(f.v4.Src()), netip.AddrFrom4(f.v4.Dst())
	case 0x86dd:
		f.v6 = IPv6(ip)
		if !f.v6.IsValid() || f.v6.NextHeader() != ProtocolUDP {
			return f, false, nil
		}
		f.udp = UDP(f.v6.Payload())
		src, dst = netip.AddrFrom16(f.v6.Src()), netip.AddrFrom16(f.v6.Dst())
	default:
		return f, false, nil
	}
	if !f.udp.IsValid() || f.udp.DstPort() != Port {
		return f, false, nil
	}
	f.src, f.dst = netip.AddrPortFrom(src, f.udp.SrcPort()), netip.AddrPortFrom(dst, Port)
	f.packet, err = Parse(f.udp.Payload())
	return f, true, err
}

// frames calls do for every RoCEv2 packet of a capture.
func frames(t testing.TB, file string, do func(f *frame)) {
	t.Helper()
	for _, p := range golden.Read(t, file) {
		f, ok, err := open(p.Frame)
		if !ok || err != nil {
			t.Fatalf("packet %d: %v, %v: % x", p.Number, ok, err, p.Frame)
		}
		if f.src != p.Src || f.dst != p.Dst || !bytes.Equal(f.packet.Bytes(), p.Data) {
			t.Fatalf("packet %d: from %v to %v, want %v to %v", p.Number, f.src, f.dst, p.Src, p.Dst)
		}
		f.number = p.Number
		do(&f)
	}
}

// rebuild creates a frame from the values of another frame's getters.
func rebuild(f *frame) []byte {
	out := make([]byte, len(f.raw))
	copy(out[:14], f.raw)
	ip := out[14:]
	var udp UDP
	if f.v4 != nil {
		h := IPv4(ip)
		h.Init()
		h.SetTOS(f.v4.TOS())
		h.SetTotalLength(f.v4.TotalLength())
		h.SetID(f.v4.ID())
		h.SetFragment(f.v4.Fragment())
		h.SetTTL(f.v4.TTL())
		h.SetSrc(f.v4.Src())
		h.SetDst(f.v4.Dst())
		h.SetChecksum(h.Sum())
		udp = UDP(h.Payload())
	} else {
		h := IPv6(ip)
		h.Init()
		h.SetTrafficClass(f.v6.TrafficClass())
		h.SetFlowLabel(f.v6.FlowLabel())
		h.SetPayloadLength(f.v6.PayloadLength())
		h.SetHopLimit(f.v6.HopLimit())
		h.SetSrc(f.v6.Src())
		h.SetDst(f.v6.Dst())
		udp = UDP(h.Payload())
	}
	udp.SetSrcPort(f.src.Port())
	udp.SetDstPort(f.dst.Port())
	udp.SetLength(f.udp.Length())
	udp.SetChecksum(f.udp.Checksum())
	p := remake(udp.Payload(), f.packet)
	var flow Flow
	flow.Set(f.src, f.dst)
	id := uint16(0)
	if f.v4 != nil {
		id = f.v4.ID()
	}
	flow.Seal(p, id)
	return out
}

// remake copies a packet field by field, except for the ICRC.
func remake(buf []byte, old Packet) Packet {
	p := MakeFilled(buf, old.BTH().Opcode(), len(old.Payload()), old.Filler())
	b, o := p.BTH(), old.BTH()
	b.SetSolicited(o.Solicited())
	b.SetMigrated(o.Migrated())
	b.SetPKey(o.PKey())
	b.SetFECN(o.FECN())
	b.SetBECN(o.BECN())
	b.SetDestQP(o.DestQP())
	b.SetAckReq(o.AckReq())
	b.SetPSN(o.PSN())
	if h := old.DETH(); h != nil {
		p.DETH().SetQKey(h.QKey())
		p.DETH().SetSrcQP(h.SrcQP())
	}
	if h := old.FETH(); h != nil {
		p.FETH().SetBits(h.Bits())
		p.FETH().SetPlacement(h.Placement())
		p.FETH().SetSelectivity(h.Selectivity())
	}
	if h := old.RETH(); h != nil {
		p.RETH().SetVA(h.VA())
		p.RETH().SetRKey(h.RKey())
		p.RETH().SetLength(h.Length())
	}
	if h := old.AtomicETH(); h != nil {
		p.AtomicETH().SetVA(h.VA())
		p.AtomicETH().SetRKey(h.RKey())
		p.AtomicETH().SetSwap(h.Swap())
		p.AtomicETH().SetCompare(h.Compare())
	}
	if h := old.AETH(); h != nil {
		p.AETH().SetSyndrome(h.Syndrome())
		p.AETH().SetMSN(h.MSN())
	}
	if h := old.AtomicAckETH(); h != nil {
		p.AtomicAckETH().SetOrig(h.Orig())
	}
	if h := old.ImmDt(); h != nil {
		p.ImmDt().SetData(h.Data())
	}
	if h := old.IETH(); h != nil {
		p.IETH().SetRKey(h.RKey())
	}
	copy(p.Payload(), old.Payload())
	return p
}

// TestGolden parses and rebuilds every packet that rxe sent.
func TestGolden(t *testing.T) {
	summary := readSummary(t)
	for _, file := range golden.Files(t) {
		name := filepath.Base(file)
		t.Run(name, func(t *testing.T) {
			want := summary[name]
			if c, ok := corrections[name]; ok {
				want = c
			}
			got := count{opcodes: map[string]int{}}
			frames(t, file, func(f *frame) {
				got.packets++
				got.opcodes[shortName(f.packet.Format())]++
				var flow Flow
				flow.Set(f.src, f.dst)
				id, ok := flow.Check(f.packet, 0)
				if !ok {
					got.bad++
					return
				}
				if f.v4 != nil && id != f.v4.ID() {
					t.Errorf("packet %d: identification %#x, derived from the ICRC: %#x", f.number, f.v4.ID(), id)
				}
				if s := f.packet.String(); !strings.HasPrefix(s, f.packet.Format().Name+" QP=0x") {
					t.Errorf("packet %d prints as %q", f.number, s)
				}
				if out := rebuild(f); !bytes.Equal(out, f.raw) {
					t.Errorf("packet %d, %v:\n got % x\nwant % x", f.number, f.packet, out, f.raw)
				}
			})
			if got.String() != want.String() {
				t.Errorf("\n got %v\nwant %v", got, want)
			}
		})
	}
}

// corrections lists the lines of SUMMARY.txt that differ from the capture; they were checked by hand.
var corrections = map[string]count{
	// The file holds three requests, each answered by an ICMP "port unreachable".
	"cm-req-to-host.pcap": {3, 0, map[string]int{"UD_SEND_ONLY": 3}},
	// One SEND and its ACK are there twice: a retransmission after a timeout. The
	// listing that came with the capture has all 22.
	"rc-pingpong-ipv6gid.pcap": {22, 0, map[string]int{"RC_SEND_ONLY": 11, "RC_ACK": 11}},
}

// count is a line of SUMMARY.txt.
type count struct {
	packets, bad int
	opcodes      map[string]int
}

func (c count) String() string { return fmt.Sprint(c.packets, " packets, bad ", c.bad, " ", c.opcodes) }

var summaryLine = regexp.MustCompile(`^(\S+)\s+(\d+) pkts icrc_bad=(\d+) \S+ \S+\s+(.*)$`)

func readSummary(t *testing.T) map[string]count {
	t.Helper()
	data, err := os.ReadFile(golden.Path("SUMMARY.txt"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]count{}
	s := bufio.NewScanner(bytes.NewReader(data))
	for s.Scan() {
		m := summaryLine.FindStringSubmatch(s.Text())
		if m == nil {
			t.Fatalf("SUMMARY.txt: cannot read %q", s.Text())
		}
		c := count{opcodes: map[string]int{}}
		c.packets, _ = strconv.Atoi(m[2])
		c.bad, _ = strconv.Atoi(m[3])
		for _, op := range strings.Split(m[4], ", ") {
			i := strings.LastIndex(op, "x")
			c.opcodes[op[:i]], _ = strconv.Atoi(op[i+1:])
		}
		all[m[1]] = c
	}
	return all
}

// shortName returns an opcode's name as in SUMMARY.txt.
func shortName(f *Format) string {
	s := strings.ToUpper(strings.ReplaceAll(f.Name, " ", "_"))
	for _, r := range []struct{ from, to string }{
		{"RDMA_", ""}, {"IMMEDIATE", "IMM"}, {"READ_REQUEST", "READ_REQ"}, {"READ_RESPONSE", "READ_RESP"},
		{"ACKNOWLEDGE", "ACK"}, {"COMPARE_SWAP", "CMP_SWAP"},
	} {
		s = strings.ReplaceAll(s, r.from, r.to)
	}
	return s
}

// TestGoldenCorrupt finds the one corrupted packet, and checks that only the ICRC detects it.
func TestGoldenCorrupt(t *testing.T) {
	var bad []int
	frames(t, golden.Path("rc-corrupt-icrc.pcap"), func(f *frame) {
		var flow Flow
		flow.Set(f.src, f.dst)
		if _, ok := flow.Check(f.packet, f.v4.ID()); !ok {
			bad = append(bad, f.number)
			if f.packet.BTH().Opcode() != RCSendMiddle {
				t.Errorf("packet %d is damaged: got %v, want a Send Middle", f.number, f.packet)
			}
		}
	})
	if len(bad) != 1 {
		t.Errorf("damaged packets: got %v, want one", bad)
	}
}

// TestGoldenMasks changes fields that the ICRC must not cover, and fields that it must cover.
func TestGoldenMasks(t *testing.T) {
	frames(t, golden.Path("rc-pingpong-64.pcap"), func(f *frame) {
		var flow Flow
		flow.Set(f.src, f.dst)
		f.packet.BTH().SetFECN(true)
		f.packet.BTH().SetBECN(true)
		if id, ok := flow.Check(f.packet, 0); !ok || id != f.v4.ID() {
			t.Errorf("packet %d: congestion bits count for the ICRC", f.number)
		}
		for _, at := range []int{0, 1, 2, 5, 8, 11, BTHSize, len(f.packet.data) - ICRCSize - 1, len(f.packet.data) - 1} {
			f.packet.data[at] ^= 0x10
			// A single bit error: a 32-bit CRC detects it even without the 16 bits of the identification.
			if id, ok := flow.Check(f.packet, 0); ok && id == f.v4.ID() {
				t.Errorf("packet %d: byte %d does not count for the ICRC", f.number, at)
			}
			f.packet.data[at] ^= 0x10
		}
	})
}
