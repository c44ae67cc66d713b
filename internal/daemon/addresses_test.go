package daemon

import (
	"net/netip"
	"strings"
	"testing"
)

func texts(all []address) string {
	var out []string
	for _, a := range all {
		out = append(out, a.ip.String()+"%"+a.netdev)
	}
	return strings.Join(out, " ")
}

func machine(pairs ...string) []address {
	var all []address
	for i := 0; i < len(pairs); i += 2 {
		all = append(all, address{netip.MustParseAddr(pairs[i]), pairs[i+1]})
	}
	return all
}

func TestDefaultOrder(t *testing.T) {
	tests := []struct {
		name string
		all  []address
		want string
	}{
		{"nothing", nil, "127.0.0.1%lo ::1%lo"},
		{"a plain machine", machine("127.0.0.1", "lo", "::1", "lo", "10.0.0.5", "eth0", "fd00::5", "eth0", "fe80::1", "eth0"),
			"10.0.0.5%eth0 fd00::5%eth0 127.0.0.1%lo ::1%lo"},
		{"two interfaces", machine("fd00::5", "eth0", "10.0.0.5", "eth0", "10.1.0.5", "eth1", "127.0.0.2", "lo"),
			"10.0.0.5%eth0 10.1.0.5%eth1 fd00::5%eth0 127.0.0.1%lo ::1%lo"},
		{"the same address twice", machine("10.0.0.5", "eth0", "10.0.0.5", "br0"), "10.0.0.5%eth0 127.0.0.1%lo ::1%lo"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := texts(defaultOrder(test.all)); got != test.want {
				t.Errorf("got %s\nwant %s", got, test.want)
			}
		})
	}
}

func TestParseAddresses(t *testing.T) {
	all := machine("10.0.0.5", "eth0")
	tests := []struct {
		name  string
		list  []string
		want  string
		fails string
	}{
		{"as given", []string{"127.0.0.1,10.0.0.5", "192.0.2.1"}, "127.0.0.1%lo 10.0.0.5%eth0 192.0.2.1%", ""},
		{"mapped", []string{"::ffff:10.0.0.5"}, "10.0.0.5%eth0", ""},
		{"no address", []string{"10.0.0.5,eth0"}, "", `"eth0" is not an IP address`},
		{"empty", []string{""}, "", `"" is not an IP address`},
		{"twice", []string{"10.0.0.5,10.0.0.5"}, "", "given twice"},
		{"all", []string{"0.0.0.0"}, "", "not one of an interface"},
		{"all of IPv6", []string{"::"}, "", "not one of an interface"},
		{"a group", []string{"224.0.0.5"}, "", "not one of an interface"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := parseAddresses(test.list, all)
			if test.fails != "" {
				if err == nil || !strings.Contains(err.Error(), test.fails) {
					t.Errorf("got %v, want an error with %q", err, test.fails)
				}
				return
			}
			if err != nil || texts(got) != test.want {
				t.Errorf("got %s, %v, want %s", texts(got), err, test.want)
			}
		})
	}
}

func TestMachineAddresses(t *testing.T) {
	if _, err := machineAddresses(); err != nil {
		t.Error(err)
	}
}
