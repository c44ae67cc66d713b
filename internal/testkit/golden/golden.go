// Package golden reads captures for tests: those of the kernel's rxe, which are in
// internal/net/wire/testdata/golden, and those that tests make.
//
//	file ── internal/net/pcap ──▶ frames ── Parse ──▶ Packet: addresses, ports, identification, data
//
// It removes the Ethernet, IP and UDP headers and nothing more: RoCEv2 inside is what the tests examine. For the same reason it does
// not use the headers of package wire.
//
// Only tests use it: those of wire, roce, replay and cm, and of `vrdma pcap`.
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

// port is the UDP port of RoCEv2.
const port = 4791

// A Packet is a RoCEv2 packet of a capture.
type Packet struct {
	Number   int // as in Wireshark, from 1
	At       time.Time
	Src, Dst netip.AddrPort
	ID       uint16 // identification; IPv4 only
	IP       []byte // from the IP header
	Frame    []byte // the whole frame: from the Ethernet header, or as IP
	Data     []byte // from BTH to ICRC
}

// Path returns the path of a golden capture.
func Path(name string) string {
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		panic("golden: the binary has no file names; build without -trimpath")
	}
	return filepath.Join(filepath.Dir(file), "..", "..", "net", "wire", "testdata", "golden", name)
}

// Files returns the paths of all golden captures.
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

// Decode reads the RoCEv2 packets of the contents of a capture.
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

// Inside returns the Ethernet frame in a VXLAN frame; ok is false for other frames.
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

// Parse parses a frame. The packet's slices point into it. ok is false for other packets than RoCEv2.
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

// network parses the IP header; udp is nil if no UDP follows.
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
