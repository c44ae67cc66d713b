package bench

// A way is how a tool runs on a host, and how to tell that its server is ready.
type way struct {
	name  string
	side  func(*Host, ...string) []string
	ready func(h *Host, port int) func() bool
}

var (
	plain     = way{"plain", (*Host).At, (*Host).listens}        // as if there were no vrdma
	datagrams = way{"datagrams", (*Host).At, (*Host).receives}   // the same, over UDP
	device    = way{"device", (*Host).Under, (*Host).listens}    // RDMA, the tool talks of it over TCP
	managed   = way{"managed", (*Host).Under, (*Host).manages}   // RDMA, through rdma_cm
	carried   = way{"carried", (*Host).Sockets, (*Host).accepts} // TCP, carried over RDMA
	own       = way{"own", (*Host).At, (*Host).accepts}          // a command of vrdma's, which finds its daemon
	unseen    = way{"unseen", (*Host).At, (*Host).soon}          // the kernel's RDMA, through rdma_cm

	outside       = way{"outside", (*Host).outside, (*Host).listens} // in a container's network only
	outsideDevice = way{"outside-device", (*Host).outsideDevice, (*Host).listens}

	// managed and carried in a guest, where nobody can ask the daemon for its listeners. A program of sockets
	// listens for TCP, too.
	guestManaged = way{"managed-guest", (*Host).Under, (*Host).soon}
	guestCarried = way{"carried-guest", (*Host).Sockets, (*Host).listens}
)

// inGuest is the way in a guest.
func (w way) inGuest() way {
	switch w.name {
	case managed.name:
		return guestManaged
	case carried.name:
		return guestCarried
	}
	return w
}

// waysByName are all of them, for agents.
var waysByName = func() map[string]way {
	all := make(map[string]way)
	for _, w := range []way{plain, datagrams, device, managed, carried, own, unseen, guestManaged, guestCarried} {
		all[w.name] = w
	}
	return all
}()
