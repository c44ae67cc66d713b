package tenant

import "net/netip"

// A World is all objects at one moment, consistent: what one names is there. It is not changed.
type World struct {
	objects map[Key]Object
}

// Get finds an object; nil if there is none.
func (w *World) Get(k Key) Object { return w.objects[k] }

// AddressesOf are those of a NIC, given or allocated, one a family. An allocated address is in
// the object itself once it is part of a world (NICSpec.Addresses), and so is the VNI.
func (w *World) AddressesOf(n *NIC) []netip.Addr { return n.Spec.Addresses }
