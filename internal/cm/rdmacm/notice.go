package rdmacm

import "net/netip"

// A Notice is about a connection that was made, or has ended.
type Notice struct {
	Pid           int // of the program
	UID           int // whose it is
	Program       string
	Local, Remote netip.AddrPort
	Passive       bool // the peer asked for it
	Ended         bool
}

// established: the connection of an ID is there.
func (id *ID) established() {
	id.client.Established++
	id.up = true
	id.notice(false)
}

// ended: it is not there any more. The peer has said so, or the program gives the ID up, at its end
// if not before.
func (id *ID) ended() {
	if id.up {
		id.up = false
		id.notice(true)
	}
}

// notice tells who wants to hear of it.
func (id *ID) notice(ended bool) {
	if f := id.cma.Notice; f != nil {
		f(Notice{
			Pid: id.client.Pid, UID: id.client.UID, Program: id.client.Program, Local: id.src, Remote: id.dst, Passive: id.passive, Ended: ended,
		})
	}
}
