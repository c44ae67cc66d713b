package container

import (
	"path/filepath"

	"vrdma.dev/vrdma/internal/platform/launch"
)

// Where a container has its NIC. The shared object finds everything by its own path.
const (
	Dir     = "/run/vrdma"
	Preload = "/etc/ld.so.preload"
)

// PreloadText is what Preload says.
const PreloadText = Dir + "/vrdma.sock.d/libvrdma.so\n"

// A Mount is a bind mount.
type Mount struct {
	Host, Container string
	File            bool // and not a directory
}

// Mounts are those that give a container the NIC at a place.
func Mounts(p launch.Place) []Mount {
	return []Mount{
		{Host: filepath.Dir(p.Socket), Container: Dir},
		{Host: p.Preload(), Container: Preload, File: true},
	}
}

// options are those of a mount, as OCI and mount(8) spell them. It is read-only: the shared object is
// one file for all NICs. Programs cannot load that if the file system on the host is mounted noexec: exec would not
// help, since crun leaves that flag as it is.
func (m Mount) options() []string {
	bind := "rbind"
	if m.File {
		bind = "bind"
	}
	return []string{bind, "ro", "nosuid", "nodev"}
}
