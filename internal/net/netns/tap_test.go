package netns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestTap checks that an interface is configured, persists when its file is closed, is found again, and can be removed.
func TestTap(t *testing.T) {
	for _, off := range []bool{false, true} {
		t.Run(fmt.Sprintf("IPv6 off %v", off), func(t *testing.T) { testTap(t, off) })
	}
}

func testTap(t *testing.T, off bool) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("this test needs /dev/net/tun, and it cannot be opened: %v. Load the module (modprobe tun); in a container, give it the device (--device /dev/net/tun)", err)
	}
	unix.Close(fd)
	s, err := Of(away(t))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	want := Tap{MAC: [6]byte{2, 0x56, 10, 1, 0, 1}, MTU: 1400, Addresses: []netip.Prefix{netip.MustParsePrefix("10.1.0.1/24"), netip.MustParsePrefix("fd00::1/64")}}
	if off && hasIPv6(t, s) {
		if herr := s.inside(func() { err = os.WriteFile(ipv6Off("all"), []byte("1"), 0) }); errors.Is(err, unix.EROFS) {
			t.Skip("/proc/sys is read-only here, so IPv6 cannot be turned off for the test")
		} else if herr != nil || err != nil {
			t.Fatal(herr, err)
		}
		if hasIPv6(t, s) {
			t.Fatal("IPv6 is on")
		}
	}
	// Without IPv6 only the IPv6 address is missing.
	var addresses []netip.Prefix
	for _, p := range want.Addresses {
		if p.Addr().Is4() || hasIPv6(t, s) {
			addresses = append(addresses, p)
		}
	}
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
			for _, p := range addresses {
				if a.String() == p.String() {
					found++
				}
			}
		}
		if found != len(addresses) {
			t.Errorf("the addresses: %v, %v, want %v", addrs, err, addresses)
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

// ipv6Off returns the path of the sysctl that disables IPv6.
func ipv6Off(of string) string { return "/proc/sys/net/ipv6/conf/" + of + "/disable_ipv6" }

// hasIPv6 reports whether a new interface of a namespace can have IPv6 addresses.
func hasIPv6(t *testing.T, s *Space) (has bool) {
	t.Helper()
	if err := s.inside(func() {
		has = true
		for _, of := range []string{"all", "default"} {
			// The kernel does not know an interface that does not exist.
			text, err := os.ReadFile(ipv6Off(of))
			has = has && err == nil && strings.TrimSpace(string(text)) == "0"
		}
	}); err != nil {
		t.Fatal(err)
	}
	return has
}

// TestNoIPv6 checks which errors of the kernel mean that there is no IPv6.
func TestNoIPv6(t *testing.T) {
	for _, e := range []unix.Errno{unix.EACCES, unix.EPERM, unix.EOPNOTSUPP, unix.EAFNOSUPPORT} {
		if !noIPv6(e) {
			t.Errorf("%v is an error", e)
		}
	}
	if noIPv6(unix.EINVAL) || noIPv6(nil) {
		t.Error("anything is forgiven")
	}
}

// FuzzTap checks that any argument of the helper is parsed without a panic.
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

// TestTapRenamed checks that TapName follows a renamed interface.
func TestTapRenamed(t *testing.T) {
	s, err := Of(away(t))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	file, name, err := s.Tap(Tap{MAC: [6]byte{2, 0x56, 10, 1, 0, 1}, MTU: 1400})
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	defer ForgetTap(file)
	for _, args := range [][]string{{"link", "set", name, "down"}, {"link", "set", name, "name", "other"}, {"link", "set", "other", "up"}} {
		var out []byte
		if herr := s.inside(func() { out, err = exec.Command("ip", args...).CombinedOutput() }); herr != nil || err != nil {
			t.Fatalf("ip %v: %v, %v: %s", args, herr, err, out)
		}
	}
	if got, err := TapName(file); err != nil || got != "other" {
		t.Errorf("it is called %q: %v", got, err)
	}
}
