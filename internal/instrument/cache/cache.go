// Package cache keeps downloads and builds that take long and never change: a guest's kernel, an unpacked Debian, a package. Each
// has a directory in the user's cache ($XDG_CACHE_HOME or ~/.cache):
//
//	vrdma/NAME         the content, until the user removes it
//	vrdma/NAME.lock    held exclusively (flock) while the content is made
//
// Tests and the benchmark use it from processes that run at the same time: the second waits and finds the content. Only its
// maker knows whether the content is complete and of the right version. It is called every time, and may do nothing. The daemon
// and `vrdma run` cache nothing.
package cache

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Fill calls maker with the directory of that name, while no other process or goroutine uses it, and returns its path. The lock file
// stays: removing it would let two processes hold the lock.
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
	defer lock.Close() // unlocks it
	if err := flock(lock); err != nil {
		return "", fmt.Errorf("flock %s: %w", lock.Name(), err)
	}
	return dir, maker(dir)
}

// flock waits for a lock. Signals of the Go runtime interrupt it.
func flock(f *os.File) error {
	for {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != unix.EINTR {
			return err
		}
	}
}
