package container

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"vrdma.dev/vrdma/internal/platform/launch"
)

// defaultNIC is the name of the NIC that exists when nothing is declared, and of its tenant in paths.
const defaultNIC = "default"

// Of returns a NIC of the daemon at place, by its name, for containers. hook is the path of vrdma in the engines' mount namespace.
func Of(place launch.Place, name, hook string) (n NIC, err error) {
	of, nic, declared := strings.Cut(name, "/")
	if declared {
		n = NIC{Tenant: of, Name: nic}
		n.Place, err = place.NIC(of, nic)
	} else {
		n = NIC{Name: defaultNIC}
		n.Place, err = place.NIC(defaultNIC, defaultNIC)
	}
	n.Hooks = Hooks(hook, place.Socket, n.Device())
	return n, err
}

// HookProgram returns the path of vrdma for hooks: the value of a flag, this program if it is empty, and "" for "none".
func HookProgram(flag string) (string, error) {
	switch flag {
	case "none":
		return "", nil
	case "":
		path, err := os.Executable()
		return strings.TrimSuffix(path, " (deleted)"), err // the new file, if this one was replaced
	}
	return flag, nil
}

// BootLabel identifies the boot of this machine and its process namespace. A process number is only comparable where both are equal.
func BootLabel() (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	info, err := os.Stat("/proc/self/ns/pid")
	if err != nil {
		return "", err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "", errors.New("/proc/self/ns/pid has no inode")
	}
	return Label(fmt.Sprintf("%s.%d", strings.TrimSpace(string(boot)), st.Ino)), nil
}

// Label makes s the value of a label: at most 63 letters, digits, dashes and dots.
func Label(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < 0x80 && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '.') {
			return r
		}
		return '-'
	}, s)
	return strings.Trim(s[:min(len(s), 63)], "-.")
}
