package vmnet

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"vrdma.dev/vrdma/internal/net/netns"
	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/net/vswitch"
	"vrdma.dev/vrdma/test/cable"
	"vrdma.dev/vrdma/test/harness"
)

// plug gives a network namespace, which replaces a container, the interface eth0: the NIC with that number in the
// switch.
func plug(t *testing.T, s *vswitch.Switch, number int) *cable.Namespace {
	t.Helper()
	four, six := fmt.Sprintf("10.1.0.%d", number), fmt.Sprintf("fd00::%d", number)
	c := vswitch.PortConfig{
		NIC: fmt.Sprint("red/", number), Network: "red/net", MTU: 1400, Addrs: []netip.Addr{netip.MustParseAddr(four), netip.MustParseAddr(six)},
		Subnets: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("fd00::/64")},
	}
	c.MAC = overlay.MACOf(c.Addrs[0])
	p, err := s.Plug(c)
	if err != nil {
		t.Fatal(err)
	}
	space := cable.NewNamespace(t)
	var fd int
	space.Do(t, func() { fd, err = netns.OpenTap("eth0") })
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "eth0")
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
	return space
}

// in is a command in a namespace.
func in(space *cable.Namespace, argv ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"--net=" + space.Path()}, argv...)...)
}

// stopClient kills the client that wrote the file, if it still runs. Another process may have the number by now.
func stopClient(t *testing.T, pidFile string) {
	t.Helper()
	text, err := os.ReadFile(pidFile)
	if err != nil {
		return // it never went on
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return
	}
	runs := func() bool {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		return err == nil && strings.Contains(string(line), pidFile)
	}
	if !runs() {
		return
	}
	syscall.Kill(pid, syscall.SIGKILL) // it may have ended meanwhile
	if !harness.Poll(limit, func() bool { return !runs() }) {
		t.Errorf("dhclient, process %d, does not end", pid)
	}
}

// TestDHCP: ISC's stock client, with the script of its package, gets the NIC's addresses and MTU, and releases them.
func TestDHCP(t *testing.T) {
	harness.Need(t, "ip", "nsenter")
	root := harness.Unpacked(t, "isc-dhcp-client")
	s := vswitch.New(vswitch.Config{})
	t.Cleanup(s.Close)
	space := plug(t, s, 1)
	show := func() string {
		out, err := in(space, "ip", "address", "show", "dev", "eth0").CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return string(out)
	}
	// The client starts only after its link-local address has passed duplicate address detection.
	if !harness.Poll(limit, func() bool {
		out := show()
		return strings.Contains(out, "fe80::") && !strings.Contains(out, "tentative")
	}) {
		t.Fatalf("no link-local address:\n%s", show())
	}
	for family, want := range map[string][]string{"-4": {"inet 10.1.0.1/24", "mtu 1400"}, "-6": {"inet6 fd00::1/"}} {
		dir := t.TempDir()
		pidFile := filepath.Join(dir, "pid")
		t.Cleanup(func() { stopClient(t, pidFile) }) // it continues in the background with its lease
		client := func(what string) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			// The client's script runs the machine's files in /etc/dhcp, and the test must not change the machine's
			// settings.
			c := exec.CommandContext(ctx, "nsenter", "--net="+space.Path(), "unshare", "-m", "sh", "-c", `[ ! -d /etc/dhcp ] || mount -t tmpfs none /etc/dhcp && exec "$@"`, "sh",
				filepath.Join(root, "sbin/dhclient"), family, what, "-v", "-cf", "/dev/null", "-sf", filepath.Join(root, "sbin/dhclient-script"),
				"-lf", filepath.Join(dir, "leases"), "-pf", pidFile, "eth0")
			// The process in the background has our output open.
			log, err := os.Create(filepath.Join(dir, "log"))
			if err != nil {
				t.Fatal(err)
			}
			defer log.Close()
			c.Stdout, c.Stderr = log, log
			if err := c.Run(); err != nil {
				said, _ := os.ReadFile(log.Name())
				t.Fatalf("dhclient %s %s: %v\n%s", family, what, err, said)
			}
		}
		client("-1")
		for _, w := range want {
			if out := show(); !strings.Contains(out, w) {
				t.Errorf("dhclient %s: no %s:\n%s", family, w, out)
			}
		}
		client("-r")
		if out := show(); strings.Contains(out, want[0]) {
			t.Errorf("dhclient %s: what was given back is still there:\n%s", family, out)
		}
	}
}

// TestTaps: two network namespaces, which replace containers, talk through a switch: the kernel's own interfaces, with
// all offloads.
func TestTaps(t *testing.T) {
	harness.Need(t, "ip", "busybox", "iperf3", "nsenter")
	s := vswitch.New(vswitch.Config{})
	t.Cleanup(s.Close)
	var spaces []*cable.Namespace
	for i := 1; i <= 2; i++ {
		space := plug(t, s, i)
		space.IP(t, "address", "add", fmt.Sprintf("10.1.0.%d/24", i), "dev", "eth0")
		space.IP(t, "-6", "address", "add", fmt.Sprintf("fd00::%d/64", i), "dev", "eth0", "nodad")
		spaces = append(spaces, space)
	}
	run := func(argv ...string) {
		t.Helper()
		if out, err := in(spaces[0], argv...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", argv, err, out)
		}
	}
	// The kernel sent a router solicitation, and the answer has the MTU.
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
