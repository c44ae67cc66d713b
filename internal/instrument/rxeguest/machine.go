package rxeguest

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// A Guest is a virtual machine with the kernel's rxe.
type Guest struct {
	Image     string // the directory that Image returned
	Initramfs string // empty: that of Image
	CPUs      int    // 0: one
	Memory    int    // MiB; 0: 256

	IP4, IP6 string // addresses of eth0 with prefix lengths; "dhcp": an IPv4 address from DHCP, no IPv6
	MTU      int
	Device   string // name of the kernel's rxe on eth0; empty: rxe0
	Program  string // the program that init runs; empty: the agent of the tests

	Card    []string // QEMU's arguments for memory and the card eth0; nil: see Memory and Network
	Network string   // backend of eth0: QEMU's -netdev without its id
	Line    string   // backend of the serial port: QEMU's -chardev without its id
	Console string   // a file for the kernel's messages

	Reboots bool     // a reset boots again; else it ends QEMU
	More    []string // further arguments of QEMU
}

// Command returns QEMU's command line. The guest has a plain processor, on which emulated code is fastest: "rep movsb" moves single
// bytes, and carry-less multiplication uses a slow helper. The kernel gets the frequency of the clock, because measuring it on a busy
// machine fails.
func (m *Guest) Command() []string {
	const cpu = "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt,+cx16,+rdrand"
	boot := m.Kernel()
	card := m.Card
	if card == nil {
		card = []string{"-m", fmt.Sprint(cmp.Or(m.Memory, 256)), "-netdev", withID(m.Network, "n0"), "-device", "virtio-net-pci,netdev=n0,mac=52:54:00:77:00:02,romfile="}
	}
	argv := append([]string{"qemu-system-x86_64", "-nodefaults", "-no-user-config", "-M", "q35",
		"-accel", "tcg,thread=multi,tb-size=256", "-cpu", cpu, "-smp", fmt.Sprint(max(m.CPUs, 1)),
		"-display", "none", "-serial", "file:" + m.Console,
		"-kernel", filepath.Join(m.Image, "vmlinux"), "-initrd", cmp.Or(m.Initramfs, filepath.Join(m.Image, "initramfs")), "-append", boot,
		"-device", "virtio-serial-pci,id=tests", "-chardev", withID(m.Line, "line"), "-device", "virtserialport,bus=tests.0,chardev=line,name=line"}, card...)
	if !m.Reboots {
		argv = append(argv, "-no-reboot")
	}
	return append(argv, m.More...)
}

// Kernel returns the kernel's command line.
func (m *Guest) Kernel() string {
	khz := clock()
	boot := fmt.Sprintf("console=ttyS0 quiet panic=-1 mitigations=off nokaslr nopti tsc=reliable tsc_early_khz=%d lpj=%d "+
		"no_timer_check audit=0 selinux=0 apparmor=0 random.trust_cpu=on cryptomgr.notests "+
		"guest.ip4=%s guest.ip6=%s guest.mtu=%d", khz, khz*4, m.IP4, m.IP6, m.MTU)
	if m.Device != "" {
		boot += " guest.device=" + m.Device
	}
	if m.Program != "" {
		boot += " guest.program=" + m.Program
	}
	return boot
}

// withID inserts an id after the type of a QEMU option.
func withID(option, id string) string {
	kind, rest, more := strings.Cut(option, ",")
	if !more {
		return kind + ",id=" + id
	}
	return kind + ",id=" + id + "," + rest
}

// clock returns the frequency of this machine's time stamp counter, which the guest shares, in kHz.
func clock() int {
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if name, value, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "cpu MHz" {
			var mhz float64
			if _, err := fmt.Sscan(strings.TrimSpace(value), &mhz); err == nil && mhz > 0 {
				return int(mhz * 1000)
			}
		}
	}
	return 2_000_000
}
