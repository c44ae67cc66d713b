package preflight

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/budget"
)

// fewestFiles is what a small program with one device needs: its own files, and a
// handful for each open device and completion channel. fewestHard is what a daemon needs
// that is started for it, whose limit is the hard one.
const (
	fewestFiles = 64
	fewestHard  = budget.FewestFiles
)

// Machine looks for what every program needs here, under root (/ except in tests).
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
	add(provider(root))
	return found
}

// files asks for the limit that the program will have. That is not ours: Go raises
// its own and gives the old one back on exec without telling anybody what it is,
// so a shell has to say. Without a shell we trust that it is fine.
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
		return &Finding{ // not fatal: a daemon may run already
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

// userModeOnly is UFFD_USER_MODE_ONLY of <linux/userfaultfd.h>: what a user without
// rights may have.
const userModeOnly = 1

// userfault asks for what registration uses to stop a program's other threads
// from writing to pages that are being moved.
func userfault() *Finding {
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|userModeOnly, 0, 0)
	if errno == 0 {
		unix.Close(int(fd))
		return nil
	}
	return &Finding{
		What: fmt.Sprintf("userfaultfd is not available (%v)", errno),
		Do:   "memory that other threads write to while it is being registered may lose those writes; allow userfaultfd in the container's seccomp profile",
	}
}

// provider looks for libibverbs' rxe driver, which makes our device usable. A
// private build of rdma-core may have it elsewhere, hence only a warning.
func provider(root string) *Finding {
	for _, pattern := range []string{
		"usr/lib/*/libibverbs/librxe-rdmav*.so", "usr/lib/libibverbs/librxe-rdmav*.so",
		"usr/lib64/libibverbs/librxe-rdmav*.so", "usr/local/lib*/libibverbs/librxe-rdmav*.so",
		"usr/local/lib/*/libibverbs/librxe-rdmav*.so",
	} {
		// The only error is a bad pattern.
		if found, err := filepath.Glob(filepath.Join(root, pattern)); err == nil && len(found) > 0 {
			return driver(root)
		}
	}
	return &Finding{
		What: "libibverbs' rxe provider is not installed (librxe-rdmav*.so)",
		Do:   "programs will find no device; run apt-get install ibverbs-providers (Fedora: libibverbs)",
	}
}

// driver looks for the file that makes libibverbs load the provider.
func driver(root string) *Finding {
	for _, dir := range []string{"etc", "usr/local/etc", "usr/etc"} {
		if _, err := os.Stat(filepath.Join(root, dir, "libibverbs.d/rxe.driver")); !errors.Is(err, os.ErrNotExist) {
			return nil
		}
	}
	return &Finding{
		What: "libibverbs is not told about the rxe provider (no /etc/libibverbs.d/rxe.driver)",
		Do:   "programs will find no device; run apt-get install --reinstall ibverbs-providers",
	}
}
