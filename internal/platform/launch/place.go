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

// A Place is where one daemon lives: the socket, and by its name everything else.
type Place struct {
	Socket string
}

// Dir is what programs need from the daemon, apart from the socket.
func (p Place) Dir() string { return p.Socket + ".d" }

// Library is the shared object to preload.
func (p Place) Library() string { return filepath.Join(p.Dir(), "libvrdma.so") }

// Sockets is the one for `vrdma run --sockets`.
func (p Place) Sockets() string { return filepath.Join(p.Dir(), "libvrdma-sockets.so") }

// Preload is the file that a container has as its /etc/ld.so.preload.
func (p Place) Preload() string { return filepath.Join(p.Dir(), "ld.so.preload") }

// Sysfs is the device tree.
func (p Place) Sysfs() string { return filepath.Join(p.Dir(), "sys") }

// Log is where a daemon started by Start writes.
func (p Place) Log() string { return p.Socket + ".log" }

// NICs is where the directories of declared NICs are.
func (p Place) NICs() string { return p.Socket + ".nics" }

// NIC is the place of a declared NIC, with everything that a program needs to use it: the
// directory of its socket is what is mounted into a container. It is PATH.nics/TENANT/NAME/nic, and
// PATH.nics/TENANT/NAME, its gate, decides who gets there; where
// that would be too long for a socket, a number made from both names takes their place.
func (p Place) NIC(tenant, name string) (Place, error) {
	at := func(dir string) Place { return Place{Socket: filepath.Join(p.NICs(), dir, "nic", "vrdma.sock")} }
	n := at(filepath.Join(tenant, name))
	if len(n.Socket) > maxSocketPath || len(n.Sysfs()) > maxSysfsPath {
		sum := sha256.Sum256([]byte(tenant + "/" + name))
		n = at(hex.EncodeToString(sum[:8]))
	}
	return At(n.Socket)
}

// Waiting is a directory like a NIC's, without a socket: containers have it mounted whose NIC is made only when they start. No
// tenant is called so.
func (p Place) Waiting() (Place, error) {
	return At(filepath.Join(p.NICs(), ".waiting", "nic", "vrdma.sock"))
}

// Guest is where a virtual machine's QEMU connects to, of a NIC's place.
func (p Place) Guest() string { return filepath.Join(filepath.Dir(p.Socket), "guest.sock") }

// Gate is the directory around that of a NIC's place.
func (p Place) Gate() string { return filepath.Dir(filepath.Dir(p.Socket)) }

func (p Place) lock() string  { return p.Socket + ".lock" }
func (p Place) pid() string   { return p.Socket + ".pid" }
func (p Place) lease() string { return p.Socket + ".lease" }

// At is the place of the daemon with this socket. The path becomes absolute,
// since programs change their directory, and has to survive LD_PRELOAD, where
// blanks and colons separate.
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

// System is the socket of root's daemon, unless root says something else. It is not in /run, which Debian mounts noexec: programs could not
// load the shared object from there.
const System = "/var/lib/vrdma/vrdma.sock"

// Default is this user's place: in XDG_RUNTIME_DIR if that is there and is this user's (after su it is often somebody
// else's) and programs can be run from there, otherwise in tmp, a directory like /tmp that everybody can write to. It makes the
// directory. For root it is that of system, if a daemon is or was there: "" is nowhere.
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

// ForDaemon is where a daemon that stays has its place if nobody says where: that of Default, but root's is that of
// system, unless root has an XDG_RUNTIME_DIR.
func ForDaemon(getenv func(string) string, uid int, tmp, system string) (Place, error) {
	if p, ok := runtimePlace(getenv, uid); ok {
		return p, nil
	}
	if uid == 0 && system != "" && makeOwn(filepath.Dir(system), uid) == nil && !noExec(filepath.Dir(system)) {
		return At(system)
	}
	return Default(getenv, uid, tmp, system)
}

// runtimePlace is the place in XDG_RUNTIME_DIR, if that can be one.
func runtimePlace(getenv func(string) string, uid int) (Place, bool) {
	dir := getenv("XDG_RUNTIME_DIR")
	if !filepath.IsAbs(dir) || ownDirectory(dir, uid) != nil || noExec(dir) {
		return Place{}, false
	}
	p, err := At(filepath.Join(dir, "vrdma", "vrdma.sock"))
	return p, err == nil && makeOwn(filepath.Dir(p.Socket), uid) == nil
}

// noExec reports whether nothing can be executed in a directory, nor loaded from there.
func noExec(dir string) bool {
	var st syscall.Statfs_t
	const flag = 8 // ST_NOEXEC
	return syscall.Statfs(dir, &st) == nil && st.Flags&flag != 0
}

// makeOwn makes dir for uid alone. Somebody else may have been there first: /tmp
// is everybody's.
func makeOwn(dir string, uid int) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("cannot make the runtime directory: %w; choose a place with --socket", err)
	}
	return ownDirectory(dir, uid)
}

// ownDirectory says why dir is not a directory that only uid can write to.
func ownDirectory(dir string, uid int) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("runtime directory: %w", err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir():
		return fmt.Errorf("%s should be a directory and is a %s: remove it, or choose a place with --socket", dir, info.Mode().Type())
	case !ok || int(stat.Uid) != uid:
		return fmt.Errorf("%s belongs to another user (uid %d, we are %d): choose a place with --socket", dir, stat.Uid, uid)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("%s can be written to by others (mode %04o): run chmod 700 on it, or choose a place with --socket", dir, info.Mode().Perm())
	}
	return nil
}
