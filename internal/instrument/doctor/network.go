package doctor

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const groupNetwork = "network"

// between are the suites between two hosts.
var between = []string{"speed", "thesis", "slides", "progress", "mikelangelo"}

var network = []Check{
	{group: groupNetwork, name: portCheck, helps: between, do: "another program, or the kernel's rxe, has RoCE's port: experiments in namespaces work, hosts of their own do not", look: port(4791)},
	{group: groupNetwork, name: "veth", needs: between, do: "modprobe veth, or apt-get install iproute2", look: tries("ip link add v0 type veth peer name v1")},
	{group: groupNetwork, name: "tbf", needs: []string{"thesis", "mikelangelo"}, do: "modprobe sch_tbf: a link with a rate", look: tries("tc qdisc add dev lo root tbf rate 1gbit burst 100k latency 10ms")},
	{group: groupNetwork, name: "netem", do: "modprobe sch_netem: a link with a delay", look: tries("tc qdisc add dev lo root netem delay 1ms")},
	{group: groupNetwork, name: "vxlan", helps: []string{"slides"}, do: "modprobe vxlan: TCP over an overlay to compare with", look: tries("ip link add x0 type vxlan id 1 dstport 4789 local 127.0.0.1")},
	{group: groupNetwork, name: "bridge", helps: []string{"slides", "progress", "mikelangelo"}, do: "modprobe bridge: what containers and guests have today", look: tries("ip link add b0 type bridge")},
	{group: groupNetwork, name: "UDP GSO", helps: between, do: "Linux 4.18 or newer: without it every packet is a call", look: option(unix.IPPROTO_UDP, unix.UDP_SEGMENT, 1000)},
	{group: groupNetwork, name: "UDP GRO", helps: between, do: "Linux 5.0 or newer: without it every packet is a call", look: option(unix.IPPROTO_UDP, unix.UDP_GRO, 1)},
	{group: groupNetwork, name: "ECN", helps: []string{"speed"}, do: "marks of congestion are not seen", look: option(unix.IPPROTO_IP, unix.IP_RECVTOS, 1)},
	{group: groupNetwork, name: "rmem", helps: between, do: "sysctl net.core.rmem_max=4194304 for large windows between hosts", look: rmem},
	{group: groupNetwork, name: "MTU", helps: []string{"thesis"}, do: "connect the machine, or name the peer of a remote experiment", look: mtu},
}

// port reports whether a UDP port is free.
func port(n int) func(*Machine) (Outcome, string) {
	return func(*Machine) (Outcome, string) {
		c, err := net.ListenUDP("udp", &net.UDPAddr{Port: n})
		if err == nil {
			c.Close()
			return Yes, "free"
		}
		if errors.Is(err, unix.EADDRINUSE) {
			return No, "in use"
		}
		return Unknown, err.Error()
	}
}

// option reports whether a UDP socket accepts a socket option.
func option(level, name, value int) func(*Machine) (Outcome, string) {
	return func(*Machine) (Outcome, string) {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return Unknown, err.Error()
		}
		defer unix.Close(fd)
		if err := unix.SetsockoptInt(fd, level, name, value); err != nil {
			return No, err.Error()
		}
		return Yes, "works"
	}
}

func rmem(m *Machine) (Outcome, string) {
	text, err := m.read("proc/sys/net/core/rmem_max")
	n, nerr := strconv.Atoi(text)
	if err := errors.Join(err, nerr); err != nil {
		return Unknown, err.Error()
	}
	if text = fmt.Sprintf("%d KiB", n>>10); n < 4<<20 {
		return No, text
	}
	return Yes, text
}

// mtu lists the MTUs of the interfaces to other hosts.
func mtu(*Machine) (Outcome, string) {
	list, err := net.Interfaces()
	if err != nil {
		return Unknown, err.Error()
	}
	var texts []string
	for _, i := range list {
		if i.Flags&net.FlagUp != 0 && i.Flags&net.FlagLoopback == 0 {
			texts = append(texts, fmt.Sprintf("%s %d", i.Name, i.MTU))
		}
	}
	if len(texts) == 0 {
		return No, "no interface is up"
	}
	return Yes, strings.Join(texts, ", ")
}
