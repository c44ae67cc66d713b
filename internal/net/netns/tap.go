package netns

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// A Tap describes a TAP interface in a namespace. The daemon reads and writes its frames through a file.
type Tap struct {
	// Name is the interface's name; empty selects vrdma0, or the next free name.
	Name      string         `json:"name,omitempty"`
	MAC       [6]byte        `json:"mac"`
	MTU       int            `json:"mtu"`
	Addresses []netip.Prefix `json:"addresses"`
}

const (
	// tapNames is the prefix of default names, and mostTaps the maximum number of such interfaces in a namespace.
	tapNames = "vrdma"
	mostTaps = 16
	// tapHeader is the size of the virtio header before each frame.
	tapHeader = 12
	// tapHelp is the prefix of the helper's argument for an interface.
	tapHelp = "tap:"
)

// Tap creates and configures an interface in the namespace, or reuses an existing one whose file is not open. It returns the
// interface's name. The interface persists, without a carrier, when the file is closed, so that a restarted daemon finds it; ForgetTap
// changes that.
//
// The file keeps the namespace alive.
func (s *Space) Tap(t Tap) (file *os.File, name string, err error) {
	var fd int
	if herr := s.inside(func() { fd, err = makeTap(t) }); herr != nil {
		err = herr
	}
	if errors.Is(err, unix.EPERM) && os.Geteuid() != 0 { // if root lacks the right here, the helper lacks it, too
		var spec []byte
		if spec, err = json.Marshal(t); err != nil {
			return nil, "", err
		}
		var fds []int
		if fds, err = s.help(tapHelp+string(spec), 1); err == nil {
			fd = fds[0]
		}
	}
	if err != nil {
		return nil, "", err
	}
	if name, err = tapName(fd); err != nil {
		unix.Close(fd)
		return nil, "", err
	}
	return os.NewFile(uintptr(fd), "tap "+name), name, nil
}

// ForgetTap makes the interface disappear when its file is closed.
func ForgetTap(file *os.File) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	cerr := raw.Control(func(fd uintptr) { err = unix.IoctlSetInt(int(fd), unix.TUNSETPERSIST, 0) })
	return errors.Join(cerr, err)
}

// TapName returns the current name of a file's interface.
func TapName(file *os.File) (name string, err error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return "", err
	}
	cerr := raw.Control(func(fd uintptr) { name, err = tapName(int(fd)) })
	return name, errors.Join(cerr, err)
}

// Interfaces returns the interfaces of the namespace at a path; it needs root.
func Interfaces(path string) (list []net.Interface, err error) {
	s, err := At(path)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	herr := s.inside(func() { list, err = net.Interfaces() })
	return list, errors.Join(herr, err)
}

// tapName returns the name of a descriptor's interface.
func tapName(fd int) (string, error) {
	req, err := unix.NewIfreq("")
	if err != nil {
		return "", err
	}
	if err := unix.IoctlIfreq(fd, unix.TUNGETIFF, req); err != nil {
		return "", fmt.Errorf("a tap does not say its name: %w", err)
	}
	return req.Name(), nil
}

// makeTap creates an interface in the thread's namespace.
func makeTap(t Tap) (fd int, err error) {
	link, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	defer unix.Close(link)
	name := t.Name
	if name == "" {
		if name, err = t.freeName(); err != nil {
			return -1, err
		}
	}
	if fd, err = OpenTap(name); err != nil {
		return -1, err
	}
	if err = t.setUp(link, name); err == nil {
		err = unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1)
	}
	if err != nil {
		unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 0)
		unix.Close(fd)
		return -1, fmt.Errorf("the interface %s: %w", name, err)
	}
	return fd, nil
}

// freeName returns the name of the existing interface with the same MAC, or else the first free name.
func (t *Tap) freeName() (free string, err error) {
	all, err := net.Interfaces() // of this thread's namespace
	if err != nil {
		return "", err
	}
	taken := make(map[string]net.HardwareAddr)
	for _, i := range all {
		taken[i.Name] = i.HardwareAddr
	}
	for i := range mostTaps {
		name := fmt.Sprint(tapNames, i)
		mac, is := taken[name]
		if is && string(mac) == string(t.MAC[:]) {
			return name, nil
		}
		if !is && free == "" {
			free = name
		}
	}
	if free == "" {
		return "", fmt.Errorf("there are %d interfaces %s0, %[2]s1, … already", mostTaps, tapNames)
	}
	return free, nil
}

// OpenTap creates or opens a tap in the thread's namespace, which needs CAP_NET_ADMIN there. The caller configures it. Frames have a
// virtio header, with large segments and checksums left to the peer.
func OpenTap(name string) (fd int, err error) {
	fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("an interface in a container needs /dev/net/tun: %w", err)
	}
	req, err := unix.NewIfreq(name)
	if err == nil {
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, tapHeader)
	}
	if err == nil {
		const offloads = unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6 | unix.TUN_F_TSO_ECN
		err = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, offloads)
	}
	switch {
	case errors.Is(err, unix.EBUSY):
		err = fmt.Errorf("the interface %s: another process has its other end: %w", name, err)
	case errors.Is(err, unix.EINVAL):
		err = fmt.Errorf("the interface %s: there is one of that name, which is no tap, or it is no name: %w", name, err)
	case err != nil:
		err = fmt.Errorf("the interface %s: %w", name, err)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// setUp sets an interface's MAC, MTU and addresses through a netlink socket.
func (t *Tap) setUp(link int, name string) error {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	head := func(family, bits uint8) []byte { return []byte{family, bits, 0, 0} }
	index := uint32(i.Index)
	// struct ifinfomsg: family, type, index, flags, change mask.
	set := binary.NativeEndian.AppendUint32(head(unix.AF_UNSPEC, 0), index)
	up := binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(set, unix.IFF_UP), unix.IFF_UP)
	is := append(append([]byte{}, set...), make([]byte, 8)...)
	is = attribute(is, unix.IFLA_ADDRESS, t.MAC[:])
	is = attribute(is, unix.IFLA_MTU, binary.NativeEndian.AppendUint32(nil, uint32(t.MTU)))
	if err := change(link, unix.RTM_NEWLINK, 0, is); err != nil {
		return fmt.Errorf("its MAC and an MTU of %d: %w", t.MTU, err)
	}
	for _, a := range t.Addresses {
		// struct ifaddrmsg: family, prefix length, flags, scope, index.
		family, flags := uint8(unix.AF_INET), uint8(0)
		if a.Addr().Is6() {
			family, flags = unix.AF_INET6, unix.IFA_F_NODAD // the control plane guarantees unique addresses
		}
		m := binary.NativeEndian.AppendUint32([]byte{family, uint8(a.Bits()), flags, 0}, index)
		m = attribute(m, unix.IFA_LOCAL, a.Addr().AsSlice())
		m = attribute(m, unix.IFA_ADDRESS, a.Addr().AsSlice())
		err := change(link, unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, m)
		if err != nil && family == unix.AF_INET6 && noIPv6(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("its address %v: %w", a, err)
		}
	}
	if err := change(link, unix.RTM_NEWLINK, 0, up); err != nil {
		return fmt.Errorf("to set it up: %w", err)
	}
	return nil
}

// noIPv6 reports whether the kernel refused an IPv6 address because IPv6 is disabled. disable_ipv6, which Docker sets, gives EACCES or
// EPERM. A kernel without IPv6, or with ipv6.disable=1, does not support the request.
func noIPv6(err error) bool {
	for _, e := range []unix.Errno{unix.EACCES, unix.EPERM, unix.EOPNOTSUPP, unix.EAFNOSUPPORT} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// attribute appends a netlink attribute, padded.
func attribute(b []byte, kind uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofRtAttr+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	for len(b)%unix.NLMSG_ALIGNTO != 0 {
		b = append(b, 0)
	}
	return b
}

// change sends a netlink request and waits for the acknowledgement.
func change(link int, kind, flags uint16, body []byte) error {
	msg := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	msg = binary.NativeEndian.AppendUint16(msg, kind)
	msg = binary.NativeEndian.AppendUint16(msg, unix.NLM_F_REQUEST|unix.NLM_F_ACK|flags)
	msg = append(append(msg, make([]byte, 8)...), body...)
	if err := unix.Sendto(link, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	buf := make([]byte, 8192)
	n, _, err := unix.Recvfrom(link, buf, 0)
	if err != nil {
		return err
	}
	// struct nlmsghdr, followed by the error.
	if n < unix.SizeofNlMsghdr+4 || binary.NativeEndian.Uint16(buf[4:]) != unix.NLMSG_ERROR {
		return errors.New("the kernel answers something else")
	}
	if e := int32(binary.NativeEndian.Uint32(buf[unix.SizeofNlMsghdr:])); e < 0 {
		return unix.Errno(-e)
	}
	return nil
}

// parseTap parses the helper's argument.
func parseTap(spec string) (t Tap, err error) {
	if err = json.Unmarshal([]byte(strings.TrimPrefix(spec, tapHelp)), &t); err == nil && t.MTU < 0 {
		err = fmt.Errorf("an MTU of %d", t.MTU)
	}
	if err != nil {
		err = fmt.Errorf("the daemon starts this helper, with what it needs: %w", err)
	}
	return t, err
}

// serveTap is the helper that creates an interface.
func serveTap(spec string) ([]int, error) {
	t, err := parseTap(spec)
	if err != nil {
		return nil, err
	}
	fd, err := makeTap(t)
	if err != nil {
		return nil, err
	}
	return []int{fd}, nil
}
