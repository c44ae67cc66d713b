// Package launch finds a user's daemon or starts one, and prepares the environment in which a
// program sees its device.
//
// Everything about one daemon is in one directory, around its socket PATH:
//
//	PATH            the unix socket
//	PATH.d/         files for programs: libvrdma.so, sys/ (the device tree)
//	PATH.nics/      TENANT/NAME/ for each declared NIC: vrdma.sock, vrdma.sock.d/
//	PATH.pid        process number; locked by the daemon until it ends
//	PATH.lock       held while a launcher starts the daemon (flock, exclusive)
//	PATH.lease      held by every program that relies on the daemon (flock, shared)
//	PATH.log        log of a daemon that a launcher started
//
// The control socket is elsewhere: see place.go of package protocol.
//
// Two programs may be launched at the same time, and a daemon that a launcher started ends after
// its last user. The two locks resolve both races:
//
//	launcher                              ephemeral daemon
//	lease shared ──────────────┐          no sessions for a while?
//	connect: answers? done     │          lease exclusive, without waiting
//	lock exclusive             ├─ one ──► locked: unlink the socket, end
//	connect again; start one   │          busy: a program holds a lease, stay
//	unlock, exec the program ──┘
//
// The lease survives exec: it is an open descriptor of the program and its children. `vrdma run -- bash`
// therefore keeps its daemon although bash opens no device.
//
// Called by cmd/vrdma. It never sends verbs commands, and never stops a daemon that a person started.
package launch
