package credentials

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// CookieAt returns the cookie of the network namespace at a path, which equals NamespaceCookie for a client in there. Entering
// the namespace needs root.
func CookieAt(path string) (cookie uint64, err error) {
	if _, err := NamespaceAt(path); err != nil {
		return 0, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread, now in another namespace, ends with the goroutine
		cookie, err = cookieOf(path)
	}()
	<-done
	return cookie, err
}

// cookieOf moves this thread into a namespace and returns its cookie.
func cookieOf(path string) (uint64, error) {
	ns, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer ns.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return 0, fmt.Errorf("setns %s: %w", path, err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("SO_NETNS_COOKIE: %w (Linux 5.14 has it)", err)
	}
	return cookie, nil
}
