package roce

import (
	"encoding/binary"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// vxlanDevices returns the names of the kernel's vxlan devices that are up and use a port. It asks the kernel with
// netlink, because /sys may belong to another network namespace.
func vxlanDevices(port uint16) (names []string) {
	table, err := syscall.NetlinkRIB(unix.RTM_GETLINK, unix.AF_UNSPEC)
	if err != nil {
		return nil
	}
	messages, err := syscall.ParseNetlinkMessage(table)
	if err != nil {
		return nil
	}
	for _, m := range messages {
		if m.Header.Type != unix.RTM_NEWLINK || len(m.Data) < unix.SizeofIfInfomsg {
			continue
		}
		if flags := binary.NativeEndian.Uint32(m.Data[8:]); flags&unix.IFF_UP == 0 {
			continue
		}
		device := attributes(m.Data[unix.SizeofIfInfomsg:])
		info := attributes(device[unix.IFLA_LINKINFO])
		if text(info[unix.IFLA_INFO_KIND]) != "vxlan" {
			continue
		}
		at := attributes(info[unix.IFLA_INFO_DATA])[unix.IFLA_VXLAN_PORT]
		if len(at) == 2 && binary.BigEndian.Uint16(at) == port {
			names = append(names, text(device[unix.IFLA_IFNAME]))
		}
	}
	return names
}

// attributes parses netlink attributes and returns them by type.
func attributes(b []byte) map[uint16][]byte {
	const head, flags = 4, unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER
	list := make(map[uint16][]byte)
	for len(b) >= head {
		n := int(binary.NativeEndian.Uint16(b))
		if n < head || n > len(b) {
			break
		}
		list[binary.NativeEndian.Uint16(b[2:])&^flags] = b[head:n]
		b = b[min((n+3)&^3, len(b)):]
	}
	return list
}

// text decodes a C string.
func text(b []byte) string { return strings.TrimRight(string(b), "\x00") }
