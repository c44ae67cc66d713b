package preflight

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// fewestFiles is what a small program with one device needs: its own files, and a
// handful for each open device and completion channel.
const fewestFiles = 64

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
	out, err := exec.Command("/bin/sh", "-c", "ulimit -S -n").Output()
	if err != nil {
		return nil
	}
	limit, err := strconv.ParseUint(strings.TrimSpace(string(out)), 10, 64)
	if err != nil {
		return nil // "unlimited"
	}
	return tooFewFiles(limit)
}

func tooFewFiles(limit uint64) *Finding {
	if limit >= fewestFiles {
		return nil
	}
	return &Finding{
		What:  fmt.Sprintf("too few file descriptors (ulimit -n is %d)", limit),
		Do:    fmt.Sprintf("vrdma needs at least %d; run ulimit -n 1024 first", fewestFiles),
		Fatal: true,
	}
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
