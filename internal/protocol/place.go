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

// controlBases are where control directories are, best first: what only root or the user
// can write to comes before what everybody can.
func controlBases(uid int) []string {
	return []string{"/run", fmt.Sprintf("/run/user/%d", uid), "/tmp", "/var/tmp"}
}

// ControlPlaces are the paths that the control socket of a daemon of user uid may have,
// best first. The path of the program socket is absolute and has no symbolic links.
func ControlPlaces(socket string, uid int) []string {
	sum := sha256.Sum256([]byte(socket))
	name := hex.EncodeToString(sum[:8]) + ".sock"
	mounted := strings.TrimSuffix(filepath.Dir(socket), "/") + "/"
	var out []string
	for _, base := range controlBases(uid) {
		if !strings.HasPrefix(base+"/", mounted) {
			out = append(out, filepath.Join(base, fmt.Sprintf("vrdma-control-%d", uid), name))
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
