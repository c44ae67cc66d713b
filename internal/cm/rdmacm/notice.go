package rdmacm

import "net/netip"

// A Notice reports that a connection was established or has ended.
type Notice struct {
	Pid           int // process ID of the program
	UID           int // user of the program
	Program       string
	Local, Remote netip.AddrPort
	Passive       bool // the peer requested the connection
	Ended         bool
}

// established records that the connection of an ID is established.
func (id *ID) established() {
	id.client.Established++
	id.up = true
	id.notice(false)
}

// ended records that the connection has ended: the peer said so, or the program disconnects or destroys the ID.
func (id *ID) ended() {
	if id.up {
		id.up = false
		id.notice(true)
	}
}

// notice calls CMA.Notice.
func (id *ID) notice(ended bool) {
	if f := id.cma.Notice; f != nil {
		f(Notice{
			Pid: id.client.Pid, UID: id.client.UID, Program: id.client.Program, Local: id.src, Remote: id.dst, Passive: id.passive, Ended: ended,
		})
	}
}
