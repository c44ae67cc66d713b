package rxeguest

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Machine says what a guest is to be.
type Machine struct {
	Image     string // Image's directory
	Initramfs string // empty: Image's
	CPUs      int    // 0: one
	Memory    int    // MiB; 0: 256

	IP4, IP6 string // addresses of eth0, with prefix lengths; "dhcp": it asks for its IPv4 address, and has no other
	MTU      int
	Device   string // what the kernel's rxe on eth0 is called; empty: rxe0
	Program  string // what init runs; empty: the tests' agent

	Card    []string // QEMU's arguments for memory and the card that is eth0; nil: Memory and Network say that
	Network string   // where eth0 leads: QEMU's -netdev, without its id
	Line    string   // where the serial line leads: QEMU's -chardev, without its id
	Console string   // a file for what the kernel says

	Reboots bool     // it starts again when it is reset; else it ends
	More    []string // further arguments of QEMU
}

// Command is the command line that is the machine. Emulated code runs fastest on a plain
// processor: "rep movsb" goes a byte at a time and carry-less multiplication through a
// slow helper, so the guest is not told of them. The clock's frequency is told, because
// measuring it on a busy machine goes wrong.
func (m *Machine) Command() []string {
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

// Kernel is the kernel's command line.
func (m *Machine) Kernel() string {
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

// withID puts an id behind the kind that QEMU's option begins with.
func withID(option, id string) string {
	kind, rest, more := strings.Cut(option, ",")
	if !more {
		return kind + ",id=" + id
	}
	return kind + ",id=" + id + "," + rest
}

// clock is the frequency of this machine's time stamp counter, in kHz, which is the guest's.
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
