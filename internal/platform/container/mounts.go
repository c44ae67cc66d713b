package container

import (
	"path/filepath"

	"vrdma.dev/vrdma/internal/platform/launch"
)

// Paths of the NIC in a container. The shared object finds everything relative to its own path.
const (
	Dir     = "/run/vrdma"
	Preload = "/etc/ld.so.preload"
)

// PreloadText is the content of Preload.
const PreloadText = Dir + "/vrdma.sock.d/libvrdma.so\n"

// A Mount is a bind mount.
type Mount struct {
	Host, Container string
	File            bool // not a directory
}

// Mounts returns the mounts that give a container the NIC at a place.
func Mounts(p launch.Place) []Mount {
	return []Mount{
		{Host: filepath.Dir(p.Socket), Container: Dir},
		{Host: p.Preload(), Container: Preload, File: true},
	}
}

// options are the mount options, as OCI and mount(8) spell them. The mount is read-only, because all NICs share one
// file with the shared object. Programs cannot load it if the host's file system is mounted noexec: the option exec would not
// help, since crun keeps the flag.
func (m Mount) options() []string {
	bind := "rbind"
	if m.File {
		bind = "bind"
	}
	return []string{bind, "ro", "nosuid", "nodev"}
}
