package container

import (
	"encoding/json"
	"fmt"
	"strings"

	"vrdma.dev/vrdma/internal/platform/launch"
)

// Formats are the engines that Args supports.
var Formats = []string{"podman", "docker", "lxc", "nspawn", "oci"}

// Args returns the arguments, or the lines of a configuration file, that give a container the NIC at a
// place. A place's path has no blanks, so that a shell can split the arguments.
func Args(format string, p launch.Place) ([]string, error) {
	var out []string
	mounts := Mounts(p)
	switch format {
	case "podman", "docker":
		for _, m := range mounts {
			out = append(out, "-v", m.Host+":"+m.Container+":ro")
		}
	case "nspawn":
		for _, m := range mounts {
			out = append(out, "--bind-ro="+m.Host+":"+m.Container)
		}
	case "lxc":
		for _, m := range mounts {
			create := "create=dir"
			if m.File {
				create = "create=file"
			}
			out = append(out, fmt.Sprintf("lxc.mount.entry = %s %s none %s,%s 0 0",
				fstab(m.Host), strings.TrimPrefix(m.Container, "/"), strings.Join(m.options(), ","), create))
		}
	case "oci":
		text, err := json.MarshalIndent(ociMounts(mounts), "", "  ")
		if err != nil {
			return nil, err
		}
		out = append(out, string(text))
	default:
		return nil, fmt.Errorf("unknown format %q: choose one of %s", format, strings.Join(Formats, ", "))
	}
	return out, nil
}

// Lines reports whether a format has lines of a file instead of arguments of a command.
func Lines(format string) bool { return format == "lxc" || format == "oci" }

// fstab escapes a path as fstab(5) requires.
func fstab(path string) string { return strings.ReplaceAll(path, `\`, `\134`) }

// An ociMount is an entry of "mounts" in a bundle's config.json.
type ociMount struct {
	Destination string   `json:"destination"`
	Type        string   `json:"type"`
	Source      string   `json:"source"`
	Options     []string `json:"options"`
}

func ociMounts(mounts []Mount) (out []ociMount) {
	for _, m := range mounts {
		out = append(out, ociMount{Destination: m.Container, Type: "bind", Source: m.Host, Options: m.options()})
	}
	return out
}
