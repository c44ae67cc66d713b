package launch

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Limits that the kernel and libibverbs put on paths: sun_path with its NUL, and
// the buffer for SYSFS_PATH.
const (
	maxSocketPath = 107
	maxSysfsPath  = 200
)

// A Place is the socket of one daemon; the paths of all its files derive from it.
type Place struct {
	Socket string
}

// Dir is the directory with the files for programs.
func (p Place) Dir() string { return p.Socket + ".d" }

// Library is the shared object to preload.
func (p Place) Library() string { return filepath.Join(p.Dir(), "libvrdma.so") }

// Sockets is the shared object of `vrdma run --sockets`.
func (p Place) Sockets() string { return filepath.Join(p.Dir(), "libvrdma-sockets.so") }

// Preload is the file that is mounted as a container's /etc/ld.so.preload.
func (p Place) Preload() string { return filepath.Join(p.Dir(), "ld.so.preload") }

// Sysfs is the device tree.
func (p Place) Sysfs() string { return filepath.Join(p.Dir(), "sys") }

// Log is the log of a daemon that Spawn started.
func (p Place) Log() string { return p.Socket + ".log" }

// NICs is the directory of declared NICs.
func (p Place) NICs() string { return p.Socket + ".nics" }

// NIC returns the place of a declared NIC. The directory of its socket, PATH.nics/TENANT/NAME/nic, has everything
// that a program needs, and is mounted into containers. The permissions of PATH.nics/TENANT/NAME (Gate) decide who
// can reach it. If the path would be too long for a socket, a hash of both names replaces them.
func (p Place) NIC(tenant, name string) (Place, error) {
	at := func(dir string) Place { return Place{Socket: filepath.Join(p.NICs(), dir, "nic", "vrdma.sock")} }
	n := at(filepath.Join(tenant, name))
	if len(n.Socket) > maxSocketPath || len(n.Sysfs()) > maxSysfsPath {
		sum := sha256.Sum256([]byte(tenant + "/" + name))
		n = at(hex.EncodeToString(sum[:8]))
	}
	return At(n.Socket)
}

// Waiting returns a directory like a NIC's, without a socket. CDI mounts it into containers whose NIC is created when they
// start. No tenant can have this name.
func (p Place) Waiting() (Place, error) {
	return At(filepath.Join(p.NICs(), ".waiting", "nic", "vrdma.sock"))
}

// Guest returns the socket of a NIC's place for QEMU.
func (p Place) Guest() string { return filepath.Join(filepath.Dir(p.Socket), "guest.sock") }

// Gate returns the directory around a NIC's directory; its access control list has the users that can open the NIC.
func (p Place) Gate() string { return filepath.Dir(filepath.Dir(p.Socket)) }

func (p Place) lock() string  { return p.Socket + ".lock" }
func (p Place) pid() string   { return p.Socket + ".pid" }
func (p Place) lease() string { return p.Socket + ".lease" }

// At returns the place of the daemon with this socket. The path becomes absolute, because programs change their
// directory. It must not contain blanks and colons, which separate entries of LD_PRELOAD.
func At(socket string) (Place, error) {
	abs, err := filepath.Abs(socket)
	if err != nil {
		return Place{}, fmt.Errorf("socket %q: %w", socket, err)
	}
	if i := strings.IndexAny(abs, " \t\n:;"); i >= 0 {
		return Place{}, fmt.Errorf("socket path %q contains %q, which separates entries of LD_PRELOAD: choose a path without it with --socket", abs, abs[i])
	}
	p := Place{Socket: abs}
	if len(abs) > maxSocketPath {
		return Place{}, fmt.Errorf("socket path %q has %d bytes, unix sockets allow %d: choose a shorter one with --socket", abs, len(abs), maxSocketPath)
	}
	if len(p.Sysfs()) > maxSysfsPath {
		return Place{}, fmt.Errorf("device tree path %q is too long for libibverbs: choose a shorter socket path with --socket", p.Sysfs())
	}
	return p, nil
}

// System is the default socket of root's daemon. It is not in /run, which Debian mounts noexec: programs could not load the
// shared object from there.
const System = "/var/lib/vrdma/vrdma.sock"

// Default returns this user's place and creates its directory. It is in XDG_RUNTIME_DIR, if that exists, belongs to this user (after
// su it often does not) and is not mounted noexec. Otherwise it is in tmp, a directory like /tmp that all users can write to. For
// root it is system, if a daemon is or was there; "" disables this.
func Default(getenv func(string) string, uid int, tmp, system string) (Place, error) {
	if p, ok := runtimePlace(getenv, uid); ok {
		return p, nil
	}
	if uid == 0 && system != "" {
		if info, err := os.Lstat(system); err == nil && info.Mode()&fs.ModeSocket != 0 && ownDirectory(filepath.Dir(system), uid) == nil {
			return At(system)
		}
	}
	dir := filepath.Join(tmp, fmt.Sprintf("vrdma-%d", uid))
	if err := makeOwn(dir, uid); err != nil {
		return Place{}, err
	}
	return At(filepath.Join(dir, "vrdma.sock"))
}

// ForDaemon returns the default place of a daemon that stays: as Default, but system for root, unless root has an
// XDG_RUNTIME_DIR.
func ForDaemon(getenv func(string) string, uid int, tmp, system string) (Place, error) {
	if p, ok := runtimePlace(getenv, uid); ok {
		return p, nil
	}
	if uid == 0 && system != "" && makeOwn(filepath.Dir(system), uid) == nil && !noExec(filepath.Dir(system)) {
		return At(system)
	}
	return Default(getenv, uid, tmp, system)
}

// runtimePlace returns the place in XDG_RUNTIME_DIR, if that directory is usable.
func runtimePlace(getenv func(string) string, uid int) (Place, bool) {
	dir := getenv("XDG_RUNTIME_DIR")
	if !filepath.IsAbs(dir) || ownDirectory(dir, uid) != nil || noExec(dir) {
		return Place{}, false
	}
	p, err := At(filepath.Join(dir, "vrdma", "vrdma.sock"))
	return p, err == nil && makeOwn(filepath.Dir(p.Socket), uid) == nil
}

// noExec reports whether a directory's file system is mounted noexec.
func noExec(dir string) bool {
	var st syscall.Statfs_t
	const flag = 8 // ST_NOEXEC
	return syscall.Statfs(dir, &st) == nil && st.Flags&flag != 0
}

// makeOwn creates dir for uid alone. It checks the result, because in /tmp another user may have created it first.
func makeOwn(dir string, uid int) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("cannot make the runtime directory: %w; choose a path with --socket", err)
	}
	return ownDirectory(dir, uid)
}

// ownDirectory returns an error if dir is not a directory that only uid can write to.
func ownDirectory(dir string, uid int) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("runtime directory: %w", err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir():
		return fmt.Errorf("%s should be a directory and is a %s: remove it, or choose a path with --socket", dir, info.Mode().Type())
	case !ok || int(stat.Uid) != uid:
		return fmt.Errorf("%s belongs to another user (uid %d, we are %d): choose a path with --socket", dir, stat.Uid, uid)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("%s can be written to by others (mode %04o): run chmod 700 on it, or choose a path with --socket", dir, info.Mode().Perm())
	}
	return nil
}
