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

// This file finds the control socket and the tenants' socket.
//
// The directory of the program socket is mounted into containers, so root in a container can reach everything in it. Operations
// that only the daemon's user may use (see all programs and packets, stop the daemon) have another socket:
//
//	BASE/vrdma-control-UID/HASH.sock    mode 0700, then 0600
//
// UID is the daemon's user, the owner of the program socket. HASH is the first 16 hexadecimal digits of the SHA-256 of the program
// socket's path without symbolic links. So the path is short, and two daemons of a user never share one. BASE is the first of
// /run, /run/user/UID, /tmp and /var/tmp that the daemon can use. A BASE in the directory of the program socket is skipped,
// because it would be mounted into containers too. Tools try all of them.

// The tenants' socket is for tenants' administrators: they cannot enter the control directory. It exists only while a tenant has
// administrators:
//
//	BASE/vrdma-tenants-UID/HASH.sock    mode 0755, then 0666
//
// Every process on the machine can connect. The answers depend on the caller's kernel credentials, and a process outside of the
// daemon's namespaces is refused.

// controlBases returns the directories for control directories, best first: those that only root or the user can write to come
// before public ones.
func controlBases(uid int) []string {
	return []string{"/run", fmt.Sprintf("/run/user/%d", uid), "/tmp", "/var/tmp"}
}

// ControlPlaces returns the possible paths of the control socket of a daemon of user uid, best first. The path of the program
// socket is absolute and has no symbolic links.
func ControlPlaces(socket string, uid int) []string { return places("control", socket, uid) }

// TenantPlaces returns the possible paths of the tenants' socket.
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

// findControl returns the control socket of the daemon at socket, or "" if this user cannot reach one. It checks that the socket
// belongs to the user of the program socket: in /tmp any user can create a directory of that name.
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

// findTenants returns the tenants' socket of the daemon at socket, or "". If the program socket is not visible, its owner is
// unknown: then it accepts a socket of root or of this user.
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
