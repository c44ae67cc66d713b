package netns

import (
	"net"
	"net/netip"
	"testing"
)

// An interface is made with what it is to have, stays when its file is closed, is found again, and goes when it is to.
func TestTap(t *testing.T) {
	s, err := Of(away(t))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	want := Tap{MAC: [6]byte{2, 0x56, 10, 1, 0, 1}, MTU: 1400, Addresses: []netip.Prefix{netip.MustParsePrefix("10.1.0.1/24"), netip.MustParsePrefix("fd00::1/64")}}
	there := func(name string) (found *net.Interface) {
		t.Helper()
		var list []net.Interface
		if herr := s.inside(func() { list, err = net.Interfaces() }); herr != nil || err != nil {
			t.Fatal(herr, err)
		}
		for _, i := range list {
			if i.Name == name {
				found = &i
			}
		}
		return found
	}
	for range 2 {
		file, name, err := s.Tap(want)
		if err != nil {
			t.Fatal(err)
		}
		i := there(name)
		if name != "vrdma0" || i == nil || i.MTU != 1400 || i.HardwareAddr.String() != "02:56:0a:01:00:01" || i.Flags&net.FlagUp == 0 {
			t.Fatalf("%q: %+v", name, i)
		}
		var addrs []net.Addr
		s.inside(func() { addrs, err = i.Addrs() })
		found := 0
		for _, a := range addrs {
			for _, p := range want.Addresses {
				if a.String() == p.String() {
					found++
				}
			}
		}
		if found != 2 {
			t.Errorf("the addresses: %v, %v", addrs, err)
		}
		if _, _, err := s.Tap(want); err == nil {
			t.Error("one whose other end somebody has is found")
		}
		other := want
		other.MAC[5], other.Addresses = 2, []netip.Prefix{netip.MustParsePrefix("10.1.0.2/24")}
		second, name, err := s.Tap(other)
		if err != nil || name != "vrdma1" {
			t.Fatalf("another one: %q, %v", name, err)
		}
		second.Close()
		file.Close()
	}
	for i, name := range []string{"vrdma0", "vrdma1"} {
		if there(name) == nil {
			t.Errorf("%s has gone with its file", name)
		}
		want.MAC[5] = byte(i + 1)
		file, _, err := s.Tap(want)
		if err != nil {
			t.Fatal(err)
		}
		if err := ForgetTap(file); err != nil {
			t.Error(err)
		}
		file.Close()
		if there(name) != nil {
			t.Errorf("%s is left", name)
		}
	}
	for _, name := range []string{"e0", "a name", "averyveryverylongname"} {
		if file, _, err := s.Tap(Tap{Name: name, MTU: 1400}); err == nil {
			file.Close()
			t.Errorf("an interface %q is made", name)
		}
	}
}

// What the helper is told may be anything.
func FuzzTap(f *testing.F) {
	f.Add(tapHelp + `{"name":"a name","mac":[2,0,0,0,0,1],"mtu":1400,"addresses":["10.1.0.1/24"]}`)
	f.Add(tapHelp + `{"addresses":["x"]}`)
	f.Fuzz(func(t *testing.T, what string) {
		t.Helper()
		if tap, err := parseTap(what); err == nil && tap.MTU < 0 {
			t.Errorf("an MTU of %d", tap.MTU)
		}
	})
}
