package doctor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const groupMachines = "virtualisation"

// guests are the suites with virtual machines.
var guests = []string{"thesis", "progress", "mikelangelo"}

var machines = []Check{
	{group: groupMachines, name: "KVM", helps: guests, do: "load kvm_intel or kvm_amd, and be in group kvm: without it guests are emulated, and only ratios count", look: kvm},
	{group: groupMachines, name: "IOMMU", helps: cited, do: "intel_iommu=on or amd_iommu=on on the kernel's command line, to give hardware to guests", look: iommu},
	{group: groupMachines, name: "hugepages", helps: []string{"mikelangelo"}, do: "sysctl vm.nr_hugepages=1024, for OVS-DPDK", look: hugepages},
	{group: groupMachines, name: "QEMU", needs: guests, do: "apt-get install qemu-system-x86", look: program("qemu-system-x86_64", "--version")},
	{group: groupMachines, name: "vhost-user", needs: []string{"mikelangelo"}, do: "a QEMU with vhost-user (Debian's has it)", look: vhostUser},
	{group: groupMachines, name: "libvirt", helps: []string{"mikelangelo"}, do: "apt-get install libvirt-daemon-system libvirt-clients", look: program("virsh", "--version")},
}

// createVM is KVM_CREATE_VM of <linux/kvm.h>.
const createVM = 0xAE01

// kvm makes a virtual machine and boots a kernel in it: inside of a virtual machine /dev/kvm may open and still refuse it.
func kvm(m *Machine) (Outcome, string) {
	f, err := os.OpenFile(filepath.Join(m.Root, "dev/kvm"), os.O_RDWR, 0)
	switch {
	case err == nil:
		defer f.Close()
		vm, err := unix.IoctlRetInt(int(f.Fd()), createVM)
		if err != nil {
			return No, "/dev/kvm makes no machine: " + err.Error()
		}
		unix.Close(vm)
		return boots(m)
	case errors.Is(err, os.ErrPermission):
		return No, "/dev/kvm is there, but not for you"
	case errors.Is(err, os.ErrNotExist):
		return No, "no /dev/kvm"
	}
	return No, err.Error()
}

func iommu(m *Machine) (Outcome, string) {
	n := len(m.glob("sys/kernel/iommu_groups/*"))
	if n == 0 {
		return No, "no groups"
	}
	return Yes, fmt.Sprintf("%d groups", n)
}

func hugepages(m *Machine) (Outcome, string) {
	var texts []string
	for _, path := range m.glob("sys/kernel/mm/hugepages/*/nr_hugepages") {
		size := strings.TrimPrefix(filepath.Base(filepath.Dir(path)), "hugepages-")
		text, _ := m.read("sys/kernel/mm/hugepages/hugepages-" + size + "/nr_hugepages")
		if n, err := strconv.Atoi(text); err == nil && n > 0 {
			texts = append(texts, fmt.Sprintf("%d of %s", n, size))
		}
	}
	if len(texts) == 0 {
		return No, "none reserved"
	}
	return Yes, strings.Join(texts, ", ")
}

func vhostUser(m *Machine) (Outcome, string) {
	out, err := m.Run(false, "qemu-system-x86_64", "-netdev", "help")
	switch {
	case err != nil:
		return Unknown, "QEMU does not say"
	case strings.Contains(out, "vhost-user"):
		return Yes, "in QEMU"
	}
	return No, "not in this QEMU"
}
