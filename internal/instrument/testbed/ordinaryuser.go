package testbed

import (
	"fmt"
	"os"
	"os/user"
	"strings"
	"syscall"
)

// OrdinaryUser returns the user to run as: root runs the demo as nobody, to show that it needs no root.
func OrdinaryUser() (as *syscall.Credential, name string) {
	const nobody = 65534
	if os.Getuid() == 0 {
		uids, _ := os.ReadFile("/proc/self/uid_map")
		gids, _ := os.ReadFile("/proc/self/gid_map")
		if !mapped(string(uids), nobody) || !mapped(string(gids), nobody) {
			return nil, "root of a user namespace, elsewhere an ordinary user"
		}
		return &syscall.Credential{Uid: nobody, Gid: nobody}, "nobody, an ordinary user"
	}
	if me, err := user.Current(); err == nil {
		return nil, me.Username + ", an ordinary user"
	}
	return nil, fmt.Sprintf("uid %d, an ordinary user", os.Getuid())
}

// mapped reports whether a user namespace maps id. table is its uid_map or gid_map: lines with the
// first ID inside, the first ID outside, and the length.
func mapped(table string, id uint64) bool {
	for line := range strings.Lines(table) {
		var inside, outside, n uint64
		if _, err := fmt.Sscan(line, &inside, &outside, &n); err == nil && id >= inside && id-inside < n {
			return true
		}
	}
	return false
}
