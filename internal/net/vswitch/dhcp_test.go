package vswitch

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"

	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/net/wire"
)

// asks returns a client's message with options.
func asks(mac overlay.MAC, options ...byte) []byte {
	b := make([]byte, bootpSize)
	b[0], b[1], b[2] = bootRequest, 1, 6
	copy(b[4:], "xid!")
	copy(b[28:], mac[:])
	b = be.AppendUint32(b, dhcpMagic)
	return append(append(b, options...), optEnd)
}

// options are those of an answer.
func options(b []byte) map[byte][]byte {
	out := make(map[byte][]byte)
	for o := b[bootpSize+4:]; len(o) > 1 && o[0] != optEnd; o = o[2+int(o[1]):] {
		out[o[0]] = o[2 : 2+int(o[1])]
	}
	return out
}

func TestDHCP(t *testing.T) {
	s := New(Config{})
	defer s.Close()
	a, atA := plug(t, s, "red/net", "red/a", "10.1.0.1")
	_, atB := plug(t, s, "red/net", "red/b", "10.1.0.2")
	for _, c := range []struct {
		name    string
		options []byte
		want    byte // 0: no answer
	}{
		{"discover", []byte{optType, 1, dhcpDiscover}, dhcpOffer},
		{"request", []byte{optType, 1, dhcpRequest, optRequested, 4, 10, 1, 0, 1, optServer, 4, 169, 254, 0, 1}, dhcpAck},
		{"another's address", []byte{optType, 1, dhcpRequest, optRequested, 4, 10, 1, 0, 2}, dhcpNak},
		{"another server's", []byte{optType, 1, dhcpRequest, optServer, 4, 10, 1, 0, 9}, 0},
		{"inform", []byte{0, 0, optType, 1, dhcpInform}, dhcpAck},
		{"release", []byte{optType, 1, 7}, 0},
		{"nothing", nil, 0},
		{"cut off", []byte{optType, 200, 1}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			say(a, header{}, frameOf(everybody, a.MAC, "0.0.0.0", "255.255.255.255", protoUDP, datagram(bootpClient, bootpServer, asks(a.MAC, c.options...))))
			got := atA.caught()
			if len(atB.caught()) > 0 {
				t.Error("it was sent on")
			}
			if c.want == 0 {
				if len(got) > 0 {
					t.Errorf("answered with %x", got)
				}
				return
			}
			if len(got) != 1 {
				t.Fatalf("%d answers", len(got))
			}
			b := got[0]
			u := b[etherSize+wire.IPv4Size:]
			if s := fold(sum(u, pseudo(b[etherSize:], protoUDP, len(u)))); s != 0xffff || overlay.MAC(b) != a.MAC {
				t.Errorf("sum %#x, to %x", s, b[:6])
			}
			boot := u[wire.UDPSize:]
			o := options(boot)
			if !slices.Equal(o[optType], []byte{c.want}) || string(boot[4:8]) != "xid!" {
				t.Errorf("answered with %v", o)
			}
			if c.want == dhcpNak {
				return
			}
			if netip.AddrFrom4([4]byte(boot[16:])) != a.Addrs[0] || !slices.Equal(o[optMask], []byte{255, 255, 255, 0}) || be.Uint16(o[optMTU]) != 1500 {
				t.Errorf("address %v, options %v", boot[16:20], o)
			}
		})
	}
}

func FuzzDHCP(f *testing.F) {
	f.Add(asks(overlay.MAC{2}, optType, 1, dhcpDiscover))
	f.Add(asks(overlay.MAC{2}, optType, 1, dhcpRequest, optRequested, 4, 1, 2, 3, 4))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := New(Config{})
		defer s.Close()
		a, _ := plug(t, s, "red/net", "red/a", "10.1.0.1")
		say(a, header{}, frameOf(everybody, a.MAC, "0.0.0.0", "255.255.255.255", protoUDP, datagram(bootpClient, bootpServer, b)))
	})
}

// For any frame of a guest, other guests receive only frames of its own address, no longer than the network's MTU.
func FuzzSend(f *testing.F) {
	h, large := segment(overlay.MACOf(netip.MustParseAddr("10.1.0.1")), overlay.MACOf(netip.MustParseAddr("10.1.0.2")), "10.1.0.1", "10.1.0.2", 3000, 1400)
	var head [headerSize]byte
	h.put(head[:])
	f.Add(bytes.Clone(head[:]), large)
	f.Add(make([]byte, headerSize), frameOf(everybody, overlay.MACOf(netip.MustParseAddr("10.1.0.1")), "fd00::1", "ff02::1", protoUDP, datagram(1, 2, nil)))
	four, six := shortened(overlay.MACOf(netip.MustParseAddr("10.1.0.1")), overlay.MACOf(netip.MustParseAddr("10.1.0.2")))
	h.segment = 1
	h.put(head[:])
	f.Add(bytes.Clone(head[:]), four)
	h.gso = gsoTCP6
	h.put(head[:])
	f.Add(bytes.Clone(head[:]), six)
	f.Fuzz(func(t *testing.T, head, b []byte) {
		if len(head) < headerSize {
			return
		}
		s := New(Config{})
		defer s.Close()
		a, _ := plug(t, s, "red/net", "red/a", "10.1.0.1", "fd00::1")
		_, atB := plug(t, s, "red/net", "red/b", "10.1.0.2", "fd00::2")
		say(a, parseNetHeader(head), b)
		for _, got := range atB.caught() {
			if overlay.MAC(got[6:]) != a.MAC || len(got) > etherSize+1500 {
				t.Errorf("%d bytes from %x", len(got), got[6:12])
			}
		}
	})
}
