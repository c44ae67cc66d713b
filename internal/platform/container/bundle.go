package container

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"vrdma.dev/vrdma/internal/platform/launch"
)

// A Bundle is the directory that an engine passes to an OCI runtime; its config.json describes the container. Unknown
// parts of config.json stay unchanged.
type Bundle struct {
	path  string
	whole map[string]json.RawMessage
}

// mostConfig bounds a config.json. Engines write about ten thousand bytes.
const mostConfig = 8 << 20

// OpenBundle reads the config.json of a bundle.
func OpenBundle(dir string) (*Bundle, error) {
	b := &Bundle{path: filepath.Join(dir, "config.json")}
	info, err := os.Stat(b.path)
	if err == nil && info.Size() > mostConfig {
		err = fmt.Errorf("%s has %d bytes, want %d at most", b.path, info.Size(), mostConfig)
	}
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(b.path)
	if err != nil {
		return nil, err
	}
	if b.whole, err = parseBundle(text); err != nil {
		return nil, fmt.Errorf("%s is not an OCI configuration: %w", b.path, err)
	}
	return b, nil
}

func parseBundle(text []byte) (whole map[string]json.RawMessage, err error) {
	if err = json.Unmarshal(text, &whole); err == nil && whole == nil {
		err = errors.New("it is null")
	}
	return whole, err
}

// get parses a part of config.json. If the part is missing, into does not change.
func (b *Bundle) get(name string, into any) error {
	text, ok := b.whole[name]
	if !ok {
		return nil
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s: %q: %w", b.path, name, err)
	}
	return nil
}

func (b *Bundle) set(name string, value any) error {
	text, err := json.Marshal(value)
	if err == nil {
		b.whole[name] = text
	}
	return err
}

// Root returns the container's root file system.
func (b *Bundle) Root() (string, error) {
	var root struct {
		Path string `json:"path"`
	}
	if err := b.get("root", &root); err != nil {
		return "", err
	}
	if root.Path == "" {
		return "", fmt.Errorf("%s names no root", b.path)
	}
	if !filepath.IsAbs(root.Path) {
		root.Path = filepath.Join(filepath.Dir(b.path), root.Path)
	}
	return root.Path, nil
}

// Program returns the container's first program; "" if config.json names none.
func (b *Bundle) Program() string {
	var process struct {
		Args []string `json:"args"`
	}
	if b.get("process", &process) != nil || len(process.Args) == 0 {
		return ""
	}
	return process.Args[0]
}

// User returns the user of the container's first program and its groups, as the container numbers them.
func (b *Bundle) User() (uid int, gids []int) {
	var process struct {
		User struct {
			UID  int   `json:"uid"`
			GID  int   `json:"gid"`
			More []int `json:"additionalGids"`
		} `json:"user"`
	}
	if b.get("process", &process) != nil {
		return 0, nil
	}
	return process.User.UID, append([]int{process.User.GID}, process.User.More...)
}

// Wanted returns the device name of the NIC that the container asks for; "": none. A container asks by a device of that
// name:
//
//	--device /dev/null:/vrdma.io/nic=red.web
//
// and, if annotations are allowed, by an annotation:
//
//	vrdma.io/nic: red.web
//
// An image cannot name a device. It can set variables and, with an engine that copies the image's annotations (podman does),
// annotations: it could then choose its NIC.
func (b *Bundle) Wanted(byAnnotation bool) (string, error) {
	var annotations map[string]string
	if byAnnotation {
		if err := b.get("annotations", &annotations); err != nil {
			return "", err
		}
	}
	devices, _, err := b.devices()
	if err != nil {
		return "", err
	}
	var names []string
	if nic, ok := annotations[Kind]; ok {
		names = append(names, nic)
	}
	for _, d := range devices {
		if nic, ok := nicOfDevice(d); ok {
			names = append(names, nic)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	switch {
	case len(names) == 0:
		return "", nil
	case len(names) > 1:
		return "", fmt.Errorf("the container asks for %d NICs (%s), and can have one", len(names), strings.Join(names, ", "))
	case names[0] == "":
		return "", fmt.Errorf("the container asks for a NIC without a name: want %s=TENANT.NAME or %[1]s=default", Kind)
	}
	return names[0], nil
}

// devices returns the devices of "linux", and "linux" itself.
func (b *Bundle) devices() (devices []json.RawMessage, linux map[string]json.RawMessage, err error) {
	if err = b.get("linux", &linux); err == nil && linux["devices"] != nil {
		err = json.Unmarshal(linux["devices"], &devices)
	}
	if err != nil {
		err = fmt.Errorf("%s: the devices of \"linux\": %w", b.path, err)
	}
	return devices, linux, err
}

// nicOfDevice returns the NIC that a device names.
func nicOfDevice(device json.RawMessage) (string, bool) {
	var d struct {
		Path string `json:"path"`
	}
	if json.Unmarshal(device, &d) != nil {
		return "", false
	}
	return strings.CutPrefix(d.Path, "/"+Kind+"=")
}

// Give adds the mounts and hooks of the NIC at a place, and removes the device that named the NIC. Repeating it changes
// nothing. Call Write afterwards.
func (b *Bundle) Give(p launch.Place, hooks []Hook) error {
	var mounts []json.RawMessage
	if err := b.get("mounts", &mounts); err != nil {
		return err
	}
	mounts = slices.DeleteFunc(mounts, func(text json.RawMessage) bool {
		var m ociMount
		return json.Unmarshal(text, &m) == nil && (m.Destination == Dir || m.Destination == Preload)
	})
	for _, m := range ociMounts(Mounts(p)) {
		text, err := json.Marshal(m)
		if err != nil {
			return err
		}
		mounts = append(mounts, text)
	}
	devices, linux, err := b.devices()
	if err != nil {
		return err
	}
	left := slices.DeleteFunc(slices.Clone(devices), func(d json.RawMessage) bool { _, ours := nicOfDevice(d); return ours })
	if len(left) != len(devices) {
		if linux["devices"], err = json.Marshal(left); err != nil {
			return err
		}
		if err := b.set("linux", linux); err != nil {
			return err
		}
	}
	return errors.Join(b.set("mounts", mounts), b.addHooks(hooks))
}

// Write replaces config.json.
func (b *Bundle) Write() error {
	text, err := json.Marshal(b.whole)
	if err != nil {
		return err
	}
	info, err := os.Stat(b.path)
	if err != nil {
		return err
	}
	part := b.path + ".vrdma"
	if err := os.Remove(part); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Chmod(info.Mode().Perm()), f.Close()); err == nil {
		err = os.Rename(part, b.path)
	}
	if err != nil {
		os.Remove(part)
	}
	return err
}
