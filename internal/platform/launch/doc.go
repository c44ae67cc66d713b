// Package launch finds the daemon that serves a user, or starts one, and prepares
// the environment that makes a program see its device.
//
// Everything about one daemon stands in one directory, around its socket PATH:
//
//	PATH            the unix socket
//	PATH.d/         what programs need: libvrdma.so, sys/ (the device tree)
//	PATH.nics/      TENANT/NAME/ for each declared NIC: vrdma.sock, vrdma.sock.d/
//	PATH.pid        whose it is: locked by the daemon as long as it lives
//	PATH.lock       held while somebody starts the daemon (flock, exclusive)
//	PATH.lease      held by everyone who relies on it (flock, shared)
//	PATH.log        what a daemon that was started for us says
//
// The control socket is elsewhere: see package channel, place.go.
//
// Two programs may be launched at the same instant, and the daemon that the first
// of them started ends itself when its last user is gone. Both races are settled
// by the two locks:
//
//	launcher                              ephemeral daemon
//	lease shared ──────────────┐          no sessions for a while?
//	connect: answers? done     │          lease exclusive, at once or not at all
//	lock exclusive             ├─ one ──► got it: unlink the socket, leave
//	connect again; start one   │          did not: somebody relies on us, stay
//	unlock, exec the program ──┘
//
// The lease outlives exec: it is an open descriptor of the program and whatever
// it starts, so `vrdma run -- bash` keeps its daemon although bash opens no device.
//
// Called by cmd/vrdma. It must never talk verbs, and never stop a daemon that a
// person started.
package launch
