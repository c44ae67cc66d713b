// Package cache keeps what takes a while to get and is the same every time: a guest's
// kernel, an unpacked Debian, a package of it. Each has a directory in the user's cache,
// which is $XDG_CACHE_HOME or ~/.cache:
//
//	vrdma/NAME         what was made, until the user removes it
//	vrdma/NAME.lock    held while somebody makes it (flock, exclusive)
//
// Tests and the benchmark use it, and their binaries run at the same time: who comes second
// waits, and finds it made. Whether it is there, complete and of the wanted version only its
// maker knows, who is called every time and does nothing if there is nothing to do. The
// daemon and `vrdma run` cache nothing.
package cache

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Fill calls maker with the directory of that name, while no other process or goroutine is
// in there, and returns the directory's path. The lock file stays: to remove it is to let
// two lock it.
func Fill(name string, maker func(dir string) error) (dir string, err error) {
	place, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no place for %s in the user's cache: %w", name, err)
	}
	dir = filepath.Join(place, "vrdma", name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("the cache for %s: %w", name, err)
	}
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return "", fmt.Errorf("the cache for %s: %w", name, err)
	}
	defer lock.Close() // which unlocks it
	if err := flock(lock); err != nil {
		return "", fmt.Errorf("flock %s: %w", lock.Name(), err)
	}
	return dir, maker(dir)
}

// flock waits for a lock; Go's own signals interrupt that.
func flock(f *os.File) error {
	for {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != unix.EINTR {
			return err
		}
	}
}
