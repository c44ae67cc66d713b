package testbed

// A Launcher says how a tool starts on a host, and how to detect that its server is ready.
type Launcher struct {
	Name    string
	Command func(*Host, ...string) []string
	Ready   func(h *Host, port int) func() bool
}

var (
	Plain        = Launcher{"plain", (*Host).At, (*Host).ListensTCP}      // without vrdma
	PlainUDP     = Launcher{"datagrams", (*Host).At, (*Host).ReceivesUDP} // without vrdma, over UDP
	WithDevice   = Launcher{"device", (*Host).Under, (*Host).ListensTCP}  // RDMA; the tool exchanges its addresses over TCP
	WithCM       = Launcher{"managed", (*Host).Under, (*Host).ListensCM}  // RDMA through rdma_cm
	OverSockets  = Launcher{"carried", (*Host).Sockets, (*Host).Listens}  // TCP carried over RDMA
	VrdmaCommand = Launcher{"own", (*Host).At, (*Host).Listens}           // a command of vrdma, which finds its daemon
	KernelCM     = Launcher{"unseen", (*Host).At, (*Host).afterDelay}     // the kernel's RDMA through rdma_cm

	InNetwork           = Launcher{"outside", (*Host).inNetwork, (*Host).ListensTCP} // in the network of a container, not in the container
	InNetworkWithDevice = Launcher{"outside-device", (*Host).inNetworkWithDevice, (*Host).ListensTCP}

	// WithCM and OverSockets in a guest, where the daemon cannot be asked for listeners. A program over --sockets also listens on
	// TCP.
	guestWithCM      = Launcher{"managed-guest", (*Host).Under, (*Host).afterDelay}
	guestOverSockets = Launcher{"carried-guest", (*Host).Sockets, (*Host).ListensTCP}
)

// inGuest returns the launcher to use in a guest.
func (w Launcher) inGuest() Launcher {
	switch w.Name {
	case WithCM.Name:
		return guestWithCM
	case OverSockets.Name:
		return guestOverSockets
	}
	return w
}

// launchers are the launchers that an agent knows, by name.
var launchers = func() map[string]Launcher {
	all := make(map[string]Launcher)
	for _, w := range []Launcher{Plain, PlainUDP, WithDevice, WithCM, OverSockets, VrdmaCommand, KernelCM, guestWithCM, guestOverSockets} {
		all[w.Name] = w
	}
	return all
}()
