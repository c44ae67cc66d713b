package credentials

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// This file has the properties by which a NIC's owner can restrict its users. All of them come from the kernel, for the connected
// process.

// InGroup reports whether the process behind conn had one of these groups when it connected.
func (c *Caller) InGroup(conn syscall.Conn, gids []int) bool {
	if slices.Contains(gids, c.GID) {
		return true
	}
	return slices.ContainsFunc(Groups(conn), func(g int) bool { return slices.Contains(gids, g) })
}

// ControlGroup returns the path of the process's control group, as the daemon sees it.
func (c *Caller) ControlGroup(conn syscall.Conn) (path string, err error) {
	err = whileThere(conn, c.Pid, func() error {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", c.Pid))
		path = controlGroup(text)
		return err
	})
	if err == nil && path == "" {
		err = errors.New("it has no control group")
	}
	return path, err
}

// controlGroup parses /proc/PID/cgroup and returns the longest path of all hierarchies. With only the unified hierarchy, that is its
// path. Unused version 1 hierarchies have the path "/".
func controlGroup(text []byte) (path string) {
	for line := range bytes.Lines(text) {
		f := strings.SplitN(strings.TrimSuffix(string(line), "\n"), ":", 3)
		if len(f) != 3 {
			continue
		}
		if len(f[2]) > len(path) {
			path = f[2]
		}
	}
	return path
}

// Within reports whether a path is prefix or lies below it.
func Within(path, prefix string) bool {
	prefix = "/" + strings.Trim(prefix, "/")
	return prefix == "/" || path == prefix || strings.HasPrefix(path, prefix+"/")
}

// NamespaceCookie returns the cookie of the network namespace in which the peer of conn created its socket (SO_NETNS_COOKIE, Linux
// 5.14). It is unique until the next boot.
func NamespaceCookie(conn syscall.Conn) (cookie uint64, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	cerr := raw.Control(func(fd uintptr) {
		cookie, err = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	})
	return cookie, errors.Join(cerr, err)
}

// Container returns a name for the container that the process is in, if its control group tells.
func (c *Caller) Container(conn syscall.Conn) string {
	path, err := c.ControlGroup(conn)
	if err != nil {
		return ""
	}
	return containerOf(path)
}

// identifiers are how engines name control groups: libpod-ID.scope, docker-ID.scope, /docker/ID,
// cri-containerd-ID.scope; LXC uses the container's name.
var identifiers = regexp.MustCompile(`(?:^|[/:-])(?:([0-9a-f]{12})[0-9a-f]{52}|lxc\.payload\.([A-Za-z0-9_-]{1,63}))(?:\.scope)?(?:/|$)`)

// containerOf finds the name of a container in the path of its control group.
func containerOf(path string) string {
	m := identifiers.FindStringSubmatch(path)
	if m == nil {
		return ""
	}
	return m[1] + m[2]
}

// NetworkNamespace returns the network namespace of the process, as NamespaceAt names it.
func (c *Caller) NetworkNamespace(conn syscall.Conn) (name string, err error) {
	err = whileThere(conn, c.Pid, func() (err error) {
		name, err = NamespaceAt(fmt.Sprintf("/proc/%d/ns/net", c.Pid))
		return err
	})
	return name, err
}

// NamespaceAt returns a name for the namespace at a path: /run/netns/NAME, /proc/PID/ns/net. Equal names mean the same namespace, as
// long as both exist.
func NamespaceAt(path string) (string, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return "", &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	if fs.Type != unix.NSFS_MAGIC {
		return "", fmt.Errorf("%s is no namespace", path)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return fmt.Sprintf("%d:%d", st.Dev, st.Ino), nil
}
