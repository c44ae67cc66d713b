package container

import (
	"encoding/json"
	"slices"
	"strings"

	"vrdma.dev/vrdma/internal/platform/launch"
)

// CDIVersion is the oldest one with all that we need, and every engine with CDI reads it; a newer one is refused by older
// engines without a reason.
const CDIVersion = "0.5.0"

// Kind is what our devices are called: an engine is told vrdma.io/nic=NAME.
const Kind = "vrdma.io/nic"

// NetworkKind is what networks are called, of which a container gets a NIC of its own: vrdma.io/network=NAME.
const NetworkKind = "vrdma.io/network"

// A Spec is a file of the Container Device Interface
// (https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md).
type Spec struct {
	Version string   `json:"cdiVersion"`
	Kind    string   `json:"kind"`
	Devices []Device `json:"devices"`
}

// A Device is something that a container can be given.
type Device struct {
	Name  string `json:"name"`
	Edits Edits  `json:"containerEdits"`
}

// Edits are what that changes of a container.
type Edits struct {
	Mounts []CDIMount `json:"mounts"`
	Hooks  []Hook     `json:"hooks,omitempty"`
}

// A CDIMount is a bind mount.
type CDIMount struct {
	HostPath      string   `json:"hostPath"`
	ContainerPath string   `json:"containerPath"`
	Options       []string `json:"options"`
}

// A NIC is one that containers can be given.
type NIC struct {
	Tenant string // "": it was not declared
	Name   string
	Place  launch.Place
	Hooks  []Hook // that its containers have
	// Network: it is none yet, but the network Name, of which each container has a NIC that its hooks make.
	Network bool
}

// file says which file it is in: a file is of one kind, and of one tenant. Names have no dots.
func (n NIC) file() (name, kind string) {
	if n.Network {
		return n.Tenant + ".networks", NetworkKind
	}
	return n.Tenant, Kind
}

// Device is what engines call it: TENANT.NAME, or its name alone. Names have no dots.
func (n NIC) Device() string {
	if n.Tenant == "" {
		return n.Name
	}
	return n.Tenant + "." + n.Name
}

// Specs are the files for NICs, one for each tenant, by its name; that of NICs that were not
// declared is "", that of a tenant's networks TENANT.networks.
func Specs(nics []NIC) map[string]*Spec {
	out := make(map[string]*Spec)
	for _, n := range nics {
		file, kind := n.file()
		s := out[file]
		if s == nil {
			s = &Spec{Version: CDIVersion, Kind: kind}
			out[file] = s
		}
		d := NewDevice(n.Device(), n.Place)
		d.Edits.Hooks = n.Hooks
		s.Devices = append(s.Devices, d)
	}
	for _, s := range out {
		slices.SortFunc(s.Devices, func(a, b Device) int { return strings.Compare(a.Name, b.Name) })
	}
	return out
}

// NewDevice is the NIC at a place, as a device.
func NewDevice(name string, at launch.Place) Device {
	d := Device{Name: name}
	for _, m := range Mounts(at) {
		d.Edits.Mounts = append(d.Edits.Mounts, CDIMount{HostPath: m.Host, ContainerPath: m.Container, Options: m.options()})
	}
	return d
}

// Text is the file's content.
func (s *Spec) Text() []byte {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		panic(err) // strings only
	}
	return append(text, '\n')
}
