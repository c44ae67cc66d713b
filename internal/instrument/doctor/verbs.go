package doctor

import (
	"fmt"
	"path/filepath"
	"regexp"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/platform/preflight"
)

const groupVerbs = "verbs"

var everything = Experiments

var verbs = []Check{
	{
		group: groupVerbs, name: "programs", needs: everything, do: "see what is said",
		look: func(m *Machine) (Outcome, string) {
			for _, f := range preflight.Machine(m.Root) {
				return No, f.String()
			}
			return Yes, "find the device"
		},
	},
	{
		group: groupVerbs, name: "rdma-core", needs: everything, do: "apt-get install ibverbs-providers rdmacm-utils",
		look: rdmaCore,
	},
	{
		group: groupVerbs, name: "memory lock", helps: []string{"mikelangelo", "thesis"},
		do: "vrdma on a host needs none; for hardware and guests raise ulimit -l", look: memlock,
	},
	{
		group: groupVerbs, name: "namespaces", needs: []string{"speed", "thesis", "slides", "progress", "mikelangelo"},
		do:   "allow user and network namespaces: sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns",
		look: tries("true"),
	},
}

var library = regexp.MustCompile(`libibverbs\.so\.1\.\d+\.(\d+)\.\d+$`)

// rdmaCore reads the version from the names of its libraries.
func rdmaCore(m *Machine) (Outcome, string) {
	for _, pattern := range []string{"usr/lib/*/libibverbs.so.1.*", "usr/lib/libibverbs.so.1.*", "usr/lib64/libibverbs.so.1.*", "lib/*/libibverbs.so.1.*"} {
		for _, path := range m.glob(pattern) {
			if found := library.FindStringSubmatch(filepath.Base(path)); found != nil {
				return Yes, "version " + found[1]
			}
		}
	}
	return No, "libibverbs is not installed"
}

func memlock(*Machine) (Outcome, string) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l); err != nil {
		return Unknown, err.Error()
	}
	if l.Cur == unix.RLIM_INFINITY {
		return Yes, "unlimited"
	}
	text := fmt.Sprintf("%d MiB", l.Cur>>20)
	if l.Cur < 64<<20 {
		return No, text
	}
	return Yes, text
}
