package vmnet

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"vrdma/internal/ethernet"
	"vrdma/internal/netns"
	"vrdma/internal/overlay"
	"vrdma/test/cable"
	"vrdma/test/harness"
)

// TestTaps has two network namespaces, which stand for containers, talk through a switch: the kernel's own
// interfaces, with all offloads.
func TestTaps(t *testing.T) {
	harness.Need(t, "ip", "busybox", "iperf3", "nsenter")
	s := ethernet.New(ethernet.Config{})
	t.Cleanup(s.Close)
	var spaces []*cable.Namespace
	for i := 1; i <= 2; i++ {
		four, six := fmt.Sprintf("10.1.0.%d", i), fmt.Sprintf("fd00::%d", i)
		c := ethernet.PortConfig{
			NIC: fmt.Sprint("red/", i), Network: "red/net", MTU: 1400, Addrs: []netip.Addr{netip.MustParseAddr(four), netip.MustParseAddr(six)},
			Subnets: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("fd00::/64")},
		}
		c.MAC = overlay.MACOf(c.Addrs[0])
		p, err := s.Plug(c)
		if err != nil {
			t.Fatal(err)
		}
		space := cable.NewNamespace(t)
		spaces = append(spaces, space)
		var file *os.File
		var fd int
		space.Do(t, func() { fd, err = netns.OpenTap("eth0") })
		if err != nil {
			t.Fatal(err)
		}
		file = os.NewFile(uintptr(fd), "eth0")
		served := make(chan error, 1)
		go func() { served <- p.ServeTap(file) }()
		t.Cleanup(func() {
			file.Close()
			if err := <-served; err != nil {
				t.Error(err)
			}
			p.Unplug()
		})
		space.IP(t, "link", "set", "eth0", "address", c.MAC.String(), "up")
		space.IP(t, "address", "add", four+"/24", "dev", "eth0")
		space.IP(t, "-6", "address", "add", six+"/64", "dev", "eth0", "nodad")
	}
	in := func(space *cable.Namespace, argv ...string) *exec.Cmd {
		return exec.Command("nsenter", append([]string{"--net=" + space.Path()}, argv...)...)
	}
	run := func(argv ...string) {
		t.Helper()
		if out, err := in(spaces[0], argv...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", argv, err, out)
		}
	}
	// The kernel has asked for routers, and was told the MTU.
	if !harness.Poll(limit, func() bool {
		mtu, _ := in(spaces[0], "cat", "/proc/sys/net/ipv6/conf/eth0/mtu").CombinedOutput()
		return strings.TrimSpace(string(mtu)) == "1400"
	}) {
		t.Error("the router's advertisement does not arrive")
	}
	for _, space := range spaces {
		space.IP(t, "link", "set", "eth0", "mtu", "1400")
	}
	for _, to := range []string{"10.1.0.2", "fd00::2"} {
		run("busybox", "ping", "-c", "2", "-W", "20", to)
		run("busybox", "ping", "-c", "1", "-W", "20", "-s", "4000", to)
		server := harness.Spawn(t, in(spaces[1], "iperf3", "-s", "-1", "--forceflush"))
		server.Printed(t, "listening", limit)
		run("iperf3", "-c", to, "-n", "50M")
		if !server.Ended(limit) {
			t.Fatalf("the server does not end\n%s", server.Output())
		}
	}
	if err := in(spaces[0], "busybox", "ping", "-c", "1", "-W", "1", "-I", "10.1.0.1", "10.1.0.3").Run(); err == nil {
		t.Error("an address that nobody has answers")
	}
}
