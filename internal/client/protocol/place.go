package protocol

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Where the control socket is.
//
// The directory of the program socket is mounted into containers, so whoever is root in
// one of them can reach everything in it. What only the daemon's user may do (see
// everybody's programs and packets, stop the daemon) is asked at another socket:
//
//	BASE/vrdma-control-UID/HASH.sock    mode 0700, then 0600
//
// UID is the daemon's user, whom the program socket belongs to. HASH are the first 16
// hexadecimal digits of the SHA-256 of the program socket's path without symbolic links,
// so the path is short and two daemons of a user never share one. BASE is the first of
// /run, /run/user/UID, /tmp and /var/tmp that the daemon could use; one that lies in the
// directory of the program socket, or is it, is left out, because it would be mounted
// too. A tool looks in all of them.

// The tenants' socket is where a tenant's administrators ask, whom the control directory does
// not let in. It is there only while a tenant has administrators:
//
//	BASE/vrdma-tenants-UID/HASH.sock    mode 0755, then 0666
//
// Whoever is on the machine can connect; what is answered is decided by what the kernel says
// of the caller, and a process that does not live where the daemon lives is refused.

// controlBases returns where control directories are, best first: what only root or the user
// can write to comes before what everybody can.
func controlBases(uid int) []string {
	return []string{"/run", fmt.Sprintf("/run/user/%d", uid), "/tmp", "/var/tmp"}
}

// ControlPlaces returns the paths that the control socket of a daemon of user uid may have,
// best first. The path of the program socket is absolute and has no symbolic links.
func ControlPlaces(socket string, uid int) []string { return places("control", socket, uid) }

// TenantPlaces returns the same of the tenants' socket.
func TenantPlaces(socket string, uid int) []string { return places("tenants", socket, uid) }

func places(which, socket string, uid int) []string {
	sum := sha256.Sum256([]byte(socket))
	name := hex.EncodeToString(sum[:8]) + ".sock"
	mounted := strings.TrimSuffix(filepath.Dir(socket), "/") + "/"
	var out []string
	for _, base := range controlBases(uid) {
		if !strings.HasPrefix(base+"/", mounted) {
			out = append(out, filepath.Join(base, fmt.Sprintf("vrdma-%s-%d", which, uid), name))
		}
	}
	return out
}

// findControl finds the control socket of the daemon at socket; "" if there is none that
// we can reach. What it finds belongs to the user of the program socket: in /tmp anybody
// can make a directory of that name.
func findControl(socket string) string {
	path, err := filepath.Abs(socket)
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		return ""
	}
	uid, ok := ownerOf(os.Stat(path))
	if !ok {
		return ""
	}
	for _, place := range ControlPlaces(path, uid) {
		info, err := os.Lstat(filepath.Dir(place))
		if owner, ok := ownerOf(info, err); !ok || owner != uid || !info.IsDir() || info.Mode().Perm()&0o077 != 0 {
			continue
		}
		if _, err := os.Lstat(place); err == nil {
			return place
		}
	}
	return ""
}

// findTenants finds the tenants' socket of the daemon at socket; "" if there is none. Who
// cannot see the program socket cannot tell whose it is: then it is root's, or our own.
func findTenants(socket string) string {
	path, err := filepath.Abs(socket)
	if err != nil {
		return ""
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	uids := []int{0, os.Getuid()}
	if uid, ok := ownerOf(os.Stat(path)); ok {
		uids = []int{uid}
	}
	for _, uid := range uids {
		for _, place := range TenantPlaces(path, uid) {
			info, err := os.Lstat(filepath.Dir(place))
			if owner, ok := ownerOf(info, err); !ok || owner != uid || !info.IsDir() || info.Mode().Perm()&0o022 != 0 {
				continue
			}
			if _, err := os.Lstat(place); err == nil {
				return place
			}
		}
	}
	return ""
}

func ownerOf(info os.FileInfo, err error) (uid int, ok bool) {
	if err != nil {
		return 0, false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(st.Uid), true
}
