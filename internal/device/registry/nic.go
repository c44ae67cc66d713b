package registry

import (
	"io/fs"
	"net/netip"
	"strings"
	"time"

	"vrdma.dev/vrdma/internal/cm/rdmacm"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/sysfs"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

const (
	// Default is the name of a daemon's first NIC, for clients that name none.
	Default = "default"
	// HostNetwork is the host's own network: its NICs have the host's addresses and reach other hosts.
	HostNetwork = "host"
)

// A NIC is one virtual NIC. Its fields are set before it is added to a Table and do not change. Device and Manager are used only
// on the loop.
type NIC struct {
	Name    string
	Owner   int    // uid of its owner
	Network string // the NIC reaches only NICs of its network
	Device  *nic.NIC
	// Manager is the rdma_cm device; may be nil.
	Manager *rdmacm.CMA
	Routes  Routes
	// Namespace is not 0 if the NIC reaches others through the network namespace of the programs that have it open. No other NIC has the
	// same.
	Namespace ib.NetworkID
	// Before are its counters from other hosts before it moved here; nil: none. It is used only on the loop.
	Before *nic.Counters
	// Tree is the sysfs tree; nil: not written.
	Tree *sysfs.Tree
	// Frames returns the traffic of the NIC's port in the switch. Any goroutine may call it; nil: the NIC has no port.
	Frames func() Frames
}

// Frames count Ethernet frames from the point of view of a virtual machine or a container. They are not packets of the device.
type Frames struct {
	Attached        bool // a virtual machine or container is attached now
	RoCE            bool // UDP port 4791 of the NIC's addresses belongs to the daemon, not to the attached device
	Sent, SentBytes uint64
	Rcvd, RcvdBytes uint64
	Drops           [nic.NumReasons]uint64
	Time            uint64 // the daemon's time, in nanoseconds
}

// Routes finds routes in the network of a NIC. Package routes asks the kernel, for the host's network. The locations in a virtual
// network are in the map.
type Routes interface {
	// From returns the source address for a host; from may be unspecified.
	From(from, to netip.Addr) (netip.Addr, error)
	// Reach waits until the next hop is resolved.
	Reach(from, to netip.Addr, timeout time.Duration) error
}

// domain returns the name space of the NIC's addresses: its network. A NIC with a Namespace has its own, because other namespaces
// may use the same addresses. No network has a name that begins like this.
func (n *NIC) domain() string {
	if n.Namespace != ib.HostNetwork {
		return "@" + n.Name
	}
	return n.Network
}

// Limits returns the limits of the NIC's objects.
func (n *NIC) Limits() nic.Limits { return n.Device.Limits }

// Counters returns the counters of its queue pairs, including those from other hosts. It is called on the loop.
func (n *NIC) Counters() nic.Counters {
	c := n.Device.Counters()
	if n.Before != nil {
		c.Add(n.Before)
	}
	return c
}

// WriteTree writes the device tree below root; read reads the counters for it.
func (n *NIC) WriteTree(root string, mode fs.FileMode, read func() []sysfs.Counter) (err error) {
	n.Tree, err = sysfs.New(root, n.Device, mode, read)
	return err
}

// ContinueTree is WriteTree for a tree that another daemon has left.
func (n *NIC) ContinueTree(root string, mode fs.FileMode, read func() []sysfs.Counter) (err error) {
	n.Tree, err = sysfs.Continue(root, n.Device, mode, read)
	return err
}

// PlaceTree is WriteTree for a NIC that is not in use yet: see sysfs.Later.
func (n *NIC) PlaceTree(root string, mode fs.FileMode, read func() []sysfs.Counter) {
	n.Tree = sysfs.Later(root, n.Device, mode, read)
}

// Whose splits a declared NIC's name, TENANT/NAME. The default NIC was not declared.
func (n *NIC) Whose() (tenant, name string, declared bool) { return strings.Cut(n.Name, "/") }

// Key returns the key of a declared NIC; zero for the default NIC.
func (n *NIC) Key() (k tenant.Key) {
	if of, name, declared := n.Whose(); declared {
		k = tenant.Key{Kind: tenant.KindNIC, Tenant: of, Name: name}
	}
	return k
}
