package doctor

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// bootDeadline is how long a kernel may take under KVM until it looks for its root file system. It takes two seconds without KVM.
const bootDeadline = 10 * time.Second

// booted is what a kernel prints when it has no root file system: processors, interrupts and clocks work by then.
const booted = "Unable to mount root fs"

// boots reports whether a stock kernel boots under KVM. /dev/kvm alone proves nothing: some machines make virtual machines in which a
// stock kernel prints nothing for minutes.
func boots(m *Machine) (Outcome, string) {
	if m.Boot == nil || !m.Find("qemu-system-x86_64") {
		return Unknown, "/dev/kvm makes machines; without QEMU no boot was tried"
	}
	kernel := m.kernel()
	if kernel == "" {
		return Unknown, "/dev/kvm makes machines; there is no kernel to boot in /boot or of an earlier experiment"
	}
	switch out, err := m.Boot(kernel); {
	case strings.Contains(out, booted):
		return Yes, "boots " + filepath.Base(kernel)
	case errors.Is(err, context.DeadlineExceeded):
		return No, "a trial boot did not end within " + bootDeadline.String() + ": /dev/kvm is there, but a stock kernel does not boot"
	default:
		return No, "a trial boot failed: " + lastLine(out)
	}
}

// kernel returns a kernel that may be read: the newest of /boot, else that of experiments with guests; "": none.
func (m *Machine) kernel() string {
	list := m.glob("boot/vmlinuz-*")
	slices.Reverse(list)
	for _, path := range append(list, m.GuestKernel) {
		if f, err := os.Open(path); err == nil {
			f.Close()
			return path
		}
	}
	return ""
}

// bootKVM boots a kernel without a root file system under KVM and returns its console. It ends when the kernel gives up.
func bootKVM(kernel string) (string, error) { return boot("kvm", "host", kernel, bootDeadline) }

func boot(accelerator, processor, kernel string, limit time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	c := exec.CommandContext(ctx, "qemu-system-x86_64", "-accel", accelerator, "-cpu", processor, "-m", "256", "-nodefaults", "-display", "none",
		"-serial", "stdio", "-no-reboot", "-kernel", kernel, "-append", "console=ttyS0 panic=-1")
	c.WaitDelay = time.Second
	c.Env = append(os.Environ(), "PATH="+path())
	out, err := c.CombinedOutput()
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return string(out), err
}
