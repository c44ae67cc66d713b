package vswitch

import (
	"net/netip"
	"slices"
	"testing"

	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/net/wire"
)

// options6 are those of an answer.
func options6(b []byte) map[uint16][]byte {
	out := make(map[uint16][]byte)
	for o := b[4:]; len(o) >= 4; o = o[4+int(be.Uint16(o[2:])):] {
		out[be.Uint16(o)] = o[4 : 4+int(be.Uint16(o[2:]))]
	}
	return out
}

func TestDHCP6(t *testing.T) {
	s := New(Config{})
	defer s.Close()
	a, atA := plug(t, s, "red/net", "red/a", "10.1.0.1", "fd00::1")
	id := []byte{0, optClient6, 0, 4, 1, 2, 3, 4}
	ia := append([]byte{0, optIA6, 0, 12, 9, 9, 9, 9}, make([]byte, 8)...)
	mine := slices.Concat([]byte{0, optServer6, 0, byte(len(serverID))}, serverID)
	for _, c := range []struct {
		name    string
		kind    byte
		options []byte
		want    byte // 0: no answer
		address bool
	}{
		{"solicit", solicit6, slices.Concat(id, ia), advertise6, true},
		{"rapid", solicit6, slices.Concat(id, ia, []byte{0, optRapid6, 0, 0}), reply6, true},
		{"request", request6, slices.Concat(id, mine, ia), reply6, true},
		{"information", information6, id, reply6, false},
		{"another server's", request6, slices.Concat(id, []byte{0, optServer6, 0, 1, 7}, ia), 0, false},
		{"release", release6, slices.Concat(id, mine, ia), reply6, false},
		{"relayed", 12, slices.Concat(id, mine, ia), 0, false},
		{"cut off", solicit6, []byte{0, 1, 0, 200}, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			ask := append([]byte{c.kind, 5, 6, 7}, c.options...)
			say(a, header{}, frameOf(overlay.MAC{0x33, 0x33, 0, 1, 0, 2}, a.MAC, a.linkLocal.String(), "ff02::1:2", protoUDP, datagram(dhcp6Client, dhcp6Server, ask)))
			got := atA.caught()
			if c.want == 0 {
				if len(got) > 0 {
					t.Errorf("answered with %x", got)
				}
				return
			}
			if len(got) != 1 {
				t.Fatalf("%d answers", len(got))
			}
			u := got[0][etherSize+wire.IPv6Size:]
			if s := fold(sum(u, pseudo(got[0][etherSize:], protoUDP, len(u)))); s != 0xffff {
				t.Errorf("the sum is wrong: %#x", s)
			}
			m := u[wire.UDPSize:]
			o := options6(m)
			if m[0] != c.want || m[1] != 5 || !slices.Equal(o[optClient6], id[4:]) || !slices.Equal(o[optServer6], serverID) {
				t.Errorf("answered with %x", m)
			}
			want := netip.MustParseAddr("fd00::1").As16()
			if v := o[optIA6]; c.address && (len(v) < 12+4+24 || !slices.Equal(v[:4], ia[4:8]) || [16]byte(v[16:]) != want) || !c.address && v != nil {
				t.Errorf("addresses %x", v)
			}
		})
	}
}

func FuzzDHCP6(f *testing.F) {
	f.Add([]byte{solicit6, 1, 2, 3, 0, optClient6, 0, 1, 1, 0, optIA6, 0, 12, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		s := New(Config{})
		defer s.Close()
		a, _ := plug(t, s, "red/net", "red/a", "10.1.0.1", "fd00::1", "fd00::2", "fd00::3", "fd00::4", "fd00::5")
		say(a, header{}, frameOf(overlay.MAC{0x33, 0x33, 0, 1, 0, 2}, a.MAC, a.linkLocal.String(), "ff02::1:2", protoUDP, datagram(dhcp6Client, dhcp6Server, b)))
	})
}
