package container

import (
	"encoding/json"
	"slices"
	"strings"

	"vrdma/internal/launch"
)

// CDIVersion is the oldest one with all that we need, and every engine with CDI reads it; a newer one is refused by older
// engines without a reason.
const CDIVersion = "0.5.0"

// Kind is what our devices are called: an engine is told vrdma.io/nic=NAME.
const Kind = "vrdma.io/nic"

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
}

// Device is what engines call it: TENANT.NAME, or its name alone. Names have no dots.
func (n NIC) Device() string {
	if n.Tenant == "" {
		return n.Name
	}
	return n.Tenant + "." + n.Name
}

// Specs are the files for NICs, one for each tenant, by its name; that of NICs that were not
// declared is "".
func Specs(nics []NIC) map[string]*Spec {
	out := make(map[string]*Spec)
	for _, n := range nics {
		s := out[n.Tenant]
		if s == nil {
			s = &Spec{Version: CDIVersion, Kind: Kind}
			out[n.Tenant] = s
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
