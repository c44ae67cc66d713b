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
	// Default is the name of a daemon's first NIC, which who names none gets.
	Default = "default"
	// HostNetwork is the network of the host itself: its NICs have the host's addresses,
	// and reach other hosts.
	HostNetwork = "host"
)

// A NIC is one virtual NIC. What it is made of is set before it is put into a Table, and
// does not change. Device and Manager are touched on the loop only.
type NIC struct {
	Name    string
	Owner   int    // uid of whom it belongs to
	Network string // NICs of other networks do not exist for it
	Device  *nic.NIC
	// Manager is the rdma_cm device; nil: there is none.
	Manager *rdmacm.CMA
	Routes  Routes
	// Namespace is not 0 if the NIC reaches others through a network namespace, that of the programs
	// that have it open. No other NIC has the same.
	Namespace ib.NetworkID
	// Before is what it had counted on other hosts when it came here; nil: nothing. It is touched on the loop only.
	Before *nic.Counters
	// Tree is the device tree; nil: none has been written.
	Tree *sysfs.Tree
	// Frames reads what has passed the NIC's port in the switch. Any goroutine may call it; nil: it has none.
	Frames func() Frames
}

// Frames are Ethernet frames of a virtual machine or a container, as that sees them. They are no packets of the device.
type Frames struct {
	Attached        bool // somebody has the port as a network card now
	RoCE            bool // UDP port 4791 of the NIC's addresses is the daemon's, and not of who has the card
	Sent, SentBytes uint64
	Rcvd, RcvdBytes uint64
	Drops           [nic.NumReasons]uint64
	Time            uint64 // of the daemon, in nanoseconds
}

// Routes is how the network that a NIC is in reaches other hosts. Package routes asks the
// kernel, for the host's network; who is where in a virtual one is in the map.
type Routes interface {
	// From finds the address from which a host is reached; from may be unspecified.
	From(from, to netip.Addr) (netip.Addr, error)
	// Reach waits until the next station on the way to it is known.
	Reach(from, to netip.Addr, timeout time.Duration) error
}

// domain is in what the NIC's addresses are its own: its network. Of a NIC with a Namespace:
// others may have the same there. No network has a name that begins like this.
func (n *NIC) domain() string {
	if n.Namespace != ib.HostNetwork {
		return "@" + n.Name
	}
	return n.Network
}

// Limits returns how much of each kind there may be.
func (n *NIC) Limits() nic.Limits { return n.Device.Limits }

// Counters are those of its queue pairs, and what it counted before on other hosts. It is called on the loop.
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

// PlaceTree is WriteTree for a NIC that nobody uses yet: see sysfs.Later.
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
