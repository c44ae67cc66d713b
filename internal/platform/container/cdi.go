package container

import (
	"encoding/json"
	"slices"
	"strings"

	"vrdma.dev/vrdma/internal/platform/launch"
)

// CDIVersion is the oldest version with everything that vrdma needs. Every engine with CDI reads it; older engines silently
// ignore files of a newer version.
const CDIVersion = "0.5.0"

// Kind is the CDI kind of NICs: --device vrdma.io/nic=NAME.
const Kind = "vrdma.io/nic"

// NetworkKind is the CDI kind of networks: --device vrdma.io/network=NAME creates a NIC for the container.
const NetworkKind = "vrdma.io/network"

// A Spec is a file of the Container Device Interface
// (https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md).
type Spec struct {
	Version string   `json:"cdiVersion"`
	Kind    string   `json:"kind"`
	Devices []Device `json:"devices"`
}

// A Device is a CDI device.
type Device struct {
	Name  string `json:"name"`
	Edits Edits  `json:"containerEdits"`
}

// Edits are a device's changes to a container.
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

// A NIC is a NIC for containers.
type NIC struct {
	Tenant string // "": the default NIC, which is not declared
	Name   string
	Place  launch.Place
	Hooks  []Hook // of its containers
	// Network means that Name is a network. The hooks of each container create a NIC in it.
	Network bool
}

// file returns the name of its CDI file: a file has one kind and one tenant. Names have no dots.
func (n NIC) file() (name, kind string) {
	if n.Network {
		return n.Tenant + ".networks", NetworkKind
	}
	return n.Tenant, Kind
}

// Device returns its CDI device name: TENANT.NAME, or NAME. Names have no dots.
func (n NIC) Device() string {
	if n.Tenant == "" {
		return n.Name
	}
	return n.Tenant + "." + n.Name
}

// Specs returns the CDI files for NICs, by name: one for each tenant, "" for the default NIC, and
// TENANT.networks for a tenant's networks.
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

// NewDevice returns the NIC at a place as a CDI device.
func NewDevice(name string, at launch.Place) Device {
	d := Device{Name: name}
	for _, m := range Mounts(at) {
		d.Edits.Mounts = append(d.Edits.Mounts, CDIMount{HostPath: m.Host, ContainerPath: m.Container, Options: m.options()})
	}
	return d
}

// Text returns the file's content.
func (s *Spec) Text() []byte {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		panic(err) // strings only
	}
	return append(text, '\n')
}
