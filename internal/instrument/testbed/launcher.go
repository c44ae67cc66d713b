package testbed

// A Launcher is how a tool runs on a host, and how to tell that its server is ready.
type Launcher struct {
	Name    string
	Command func(*Host, ...string) []string
	Ready   func(h *Host, port int) func() bool
}

var (
	Plain        = Launcher{"plain", (*Host).At, (*Host).ListensTCP}      // as if there were no vrdma
	PlainUDP     = Launcher{"datagrams", (*Host).At, (*Host).ReceivesUDP} // the same, over UDP
	WithDevice   = Launcher{"device", (*Host).Under, (*Host).ListensTCP}  // RDMA, the tool talks of it over TCP
	WithCM       = Launcher{"managed", (*Host).Under, (*Host).ListensCM}  // RDMA, through rdma_cm
	OverSockets  = Launcher{"carried", (*Host).Sockets, (*Host).Listens}  // TCP, carried over RDMA
	VrdmaCommand = Launcher{"own", (*Host).At, (*Host).Listens}           // a command of vrdma's, which finds its daemon
	KernelCM     = Launcher{"unseen", (*Host).At, (*Host).afterDelay}     // the kernel's RDMA, through rdma_cm

	InNetwork           = Launcher{"outside", (*Host).inNetwork, (*Host).ListensTCP} // in a container's network only
	InNetworkWithDevice = Launcher{"outside-device", (*Host).inNetworkWithDevice, (*Host).ListensTCP}

	// managed and carried in a guest, where nobody can ask the daemon for its listeners. A program of sockets
	// listens for TCP, too.
	guestWithCM      = Launcher{"managed-guest", (*Host).Under, (*Host).afterDelay}
	guestOverSockets = Launcher{"carried-guest", (*Host).Sockets, (*Host).ListensTCP}
)

// inGuest is the way in a guest.
func (w Launcher) inGuest() Launcher {
	switch w.Name {
	case WithCM.Name:
		return guestWithCM
	case OverSockets.Name:
		return guestOverSockets
	}
	return w
}

// launchers are all of them, for agents.
var launchers = func() map[string]Launcher {
	all := make(map[string]Launcher)
	for _, w := range []Launcher{Plain, PlainUDP, WithDevice, WithCM, OverSockets, VrdmaCommand, KernelCM, guestWithCM, guestOverSockets} {
		all[w.Name] = w
	}
	return all
}()
