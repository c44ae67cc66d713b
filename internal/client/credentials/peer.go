package credentials

// A Peer is a Caller at one of the daemon's sockets.
type Peer struct {
	Who *Caller
	// Operator: the caller is at the control socket, which admits the daemon's owner and root only.
	Operator bool
	// Resident: the caller shares the daemon's user and pid namespaces and its root directory. The user numbers of other
	// callers mean nothing here.
	Resident bool
	// NIC is the name of the NIC whose socket this is; "" at the control socket and the tenants' socket. A caller there may
	// read about that NIC and change nothing.
	NIC string
}
