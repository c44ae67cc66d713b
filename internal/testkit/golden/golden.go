// Package golden reads captures for tests: those of the kernel's rxe, which are in
// internal/net/wire/testdata/golden, and those that tests make.
//
//	file ── internal/net/pcap ──▶ frames ── Parse ──▶ Packet: addresses, ports, identification, data
//
// It takes off Ethernet, IP and UDP and nothing more: what is inside is RoCEv2, which is for
// those who are under test. For the same reason it does not use package wire's headers.
//
// Who uses it: tests of wire, link, replay and cm, and those of `vrdma pcap`. Nothing else
// may.
package golden

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/net/pcap"
)

// port is RoCEv2's.
const port = 4791

// A Packet is a RoCEv2 packet of a capture.
type Packet struct {
	Number   int // as Wireshark counts, from 1
	At       time.Time
	Src, Dst netip.AddrPort
	ID       uint16 // identification; IPv4 only
	IP       []byte // from the IP header on
	Frame    []byte // all of it: Ethernet, or the same as IP
	Data     []byte // from BTH to ICRC
}

// Path is where the golden capture of this name is.
func Path(name string) string {
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		panic("golden: the binary has no file names; build without -trimpath")
	}
	return filepath.Join(filepath.Dir(file), "..", "..", "net", "wire", "testdata", "golden", name)
}

// Files are all golden captures.
func Files(t testing.TB) []string {
	t.Helper()
	const there = 38
	files, err := filepath.Glob(Path("*.pcap"))
	if err != nil || len(files) != there {
		t.Fatalf("%d golden captures, %v; want %d", len(files), err, there)
	}
	return files
}

// Read reads the RoCEv2 packets of a capture.
func Read(t testing.TB, file string) []Packet {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return Decode(t, data)
}

// Decode reads the RoCEv2 packets of a capture whose contents are data.
func Decode(t testing.TB, data []byte) (all []Packet) {
	t.Helper()
	r, err := pcap.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; ; n++ {
		at, raw, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("packet %d: %v", n, err)
		}
		if p, ok := Parse(bytes.Clone(raw), r.LinkType()); ok {
			p.Number, p.At = n, at
			all = append(all, p)
		}
	}
}

// vxlan is the port of VXLAN.
const vxlan = 4789

// Inside is the Ethernet frame in one of VXLAN's; ok is false for what is not one.
func Inside(frame []byte) (inner []byte, ok bool) {
	if len(frame) < etherSize {
		return nil, false
	}
	at := etherSize + ip4Size
	if binary.BigEndian.Uint16(frame[12:]) == 0x86dd {
		at = etherSize + ip6Size
	}
	if at += udpSize; len(frame) < at+8 || binary.BigEndian.Uint16(frame[at-6:]) != vxlan {
		return nil, false
	}
	return frame[at+8:], true
}

const (
	etherSize = 14
	ip4Size   = 20
	ip6Size   = 40
	udpSize   = 8
	isUDP     = 17
)

// Parse takes a frame apart; the packet's slices are parts of it. ok is false for what is
// not RoCEv2.
func Parse(frame []byte, link pcap.LinkType) (p Packet, ok bool) {
	p.Frame, p.IP = frame, frame
	if link == pcap.Ethernet {
		if len(frame) < etherSize {
			return p, false
		}
		p.IP = frame[etherSize:]
		kind, version := binary.BigEndian.Uint16(frame[12:]), 0
		if len(p.IP) > 0 {
			version = int(p.IP[0] >> 4)
		}
		if (kind != 0x0800 || version != 4) && (kind != 0x86dd || version != 6) {
			return p, false
		}
	}
	udp, src, dst := p.network()
	if len(udp) < udpSize {
		return p, false
	}
	n := int(binary.BigEndian.Uint16(udp[4:]))
	if binary.BigEndian.Uint16(udp[2:]) != port || n < udpSize || n > len(udp) {
		return p, false
	}
	p.Src, p.Dst = netip.AddrPortFrom(src, binary.BigEndian.Uint16(udp)), netip.AddrPortFrom(dst, port)
	p.Data = udp[udpSize:n]
	return p, true
}

// network takes the IP header off; udp is nil if there is no UDP behind it.
func (p *Packet) network() (udp []byte, src, dst netip.Addr) {
	ip := p.IP
	switch {
	case len(ip) >= ip4Size && ip[0]>>4 == 4:
		head, all := int(ip[0]&15)*4, int(binary.BigEndian.Uint16(ip[2:]))
		if ip[9] != isUDP || head < ip4Size || all < head || all > len(ip) {
			return nil, src, dst
		}
		p.ID = binary.BigEndian.Uint16(ip[4:])
		return ip[head:all], netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:]))
	case len(ip) >= ip6Size && ip[0]>>4 == 6:
		all := ip6Size + int(binary.BigEndian.Uint16(ip[4:]))
		if ip[6] != isUDP || all > len(ip) {
			return nil, src, dst
		}
		return ip[ip6Size:all], netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:]))
	}
	return nil, src, dst
}
