package preflight

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/budget"
)

// fewestFiles is the number of descriptors that a small program with one device needs: its own
// files, and a few for each open device and completion channel. fewestHard is that of a daemon
// that is started for it, whose limit is the hard limit.
const (
	fewestFiles = 64
	fewestHard  = budget.FewestFiles
)

// Machine checks what every program needs on this machine, below root (/ except in tests).
func Machine(root string) []Finding {
	var found []Finding
	add := func(f *Finding) {
		if f != nil {
			found = append(found, *f)
		}
	}
	add(files())
	add(memfd())
	add(userfault())
	if dir, err := os.Open(root); err == nil {
		add(provider(dir))
		dir.Close()
	}
	return found
}

// files checks the limit that the program will have. It differs from this process's limit: Go raises
// its own and restores the old one at exec, without an interface to read it. A shell therefore
// prints it. Without a shell the limit counts as sufficient.
func files() *Finding {
	out, err := exec.Command("/bin/sh", "-c", "ulimit -S -n; ulimit -H -n").Output()
	if err != nil {
		return nil
	}
	limits := [2]uint64{math.MaxUint64, math.MaxUint64}
	for i, word := range strings.Fields(string(out)) {
		if n, err := strconv.ParseUint(word, 10, 64); err == nil && i < len(limits) { // else "unlimited"
			limits[i] = n
		}
	}
	return tooFewFiles(limits[0], limits[1])
}

func tooFewFiles(soft, hard uint64) *Finding {
	switch {
	case soft < fewestFiles:
		return &Finding{
			What:  fmt.Sprintf("too few file descriptors (ulimit -n is %d)", soft),
			Do:    fmt.Sprintf("a program needs at least %d, and a daemon that is started for it %d; run ulimit -n 1024 first", fewestFiles, fewestHard),
			Fatal: true,
		}
	case hard < fewestHard:
		return &Finding{ // not fatal: a daemon may be running
			What: fmt.Sprintf("too few file descriptors for a daemon (ulimit -H -n is %d)", hard),
			Do:   fmt.Sprintf("one that is started now will not serve, it needs at least %d; run ulimit -n 1024 in a shell that may, or start the daemon elsewhere", fewestHard),
		}
	}
	return nil
}

func memfd() *Finding {
	fd, err := unix.MemfdCreate("vrdma-preflight", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err == nil {
		unix.Close(fd)
		return nil
	}
	return &Finding{
		What:  fmt.Sprintf("memfd_create is not available (%v)", err),
		Do:    "vrdma shares memory through it; use Linux 3.17 or newer, and allow it in the container's seccomp profile",
		Fatal: true,
	}
}

// userModeOnly is UFFD_USER_MODE_ONLY of <linux/userfaultfd.h>, which needs no privilege.
const userModeOnly = 1

// userfault checks userfaultfd, which libvrdma.so uses to move pages, and to hold back writers of
// registered memory during a fork.
func userfault() *Finding {
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|userModeOnly, 0, 0)
	if errno == 0 {
		unix.Close(int(fd))
		return nil
	}
	return &Finding{
		What: fmt.Sprintf("userfaultfd is not available (%v)", errno),
		Do:   "during a fork, writes of other threads and of peers to registered memory may get lost; allow userfaultfd in the container's seccomp profile",
	}
}

// provider checks for libibverbs' rxe provider, without which the device is unusable. A private build of
// rdma-core may have it elsewhere, so its absence is only a warning.
func provider(root *os.File) *Finding {
	for _, pattern := range []string{
		"usr/lib/*/libibverbs/librxe-rdmav*.so", "usr/lib/libibverbs/librxe-rdmav*.so",
		"usr/lib64/libibverbs/librxe-rdmav*.so", "usr/local/lib*/libibverbs/librxe-rdmav*.so",
		"usr/local/lib/*/libibverbs/librxe-rdmav*.so",
	} {
		// The only error is a bad pattern.
		if found, err := fs.Glob(tree{root}, pattern); err == nil && len(found) > 0 {
			return driver(root)
		}
	}
	return &Finding{
		What: "libibverbs' rxe provider is not installed (librxe-rdmav*.so)",
		Do:   "programs will find no device; run apt-get install ibverbs-providers (Fedora: libibverbs)",
	}
}

// driver checks for the file that makes libibverbs load the provider.
func driver(root *os.File) *Finding {
	for _, dir := range []string{"etc", "usr/local/etc", "usr/etc"} {
		if _, err := fs.Stat(tree{root}, path.Join(dir, "libibverbs.d/rxe.driver")); !errors.Is(err, fs.ErrNotExist) {
			return nil
		}
	}
	return &Finding{
		What: "libibverbs is not told about the rxe provider (no /etc/libibverbs.d/rxe.driver)",
		Do:   "programs will find no device; run apt-get install --reinstall ibverbs-providers",
	}
}
