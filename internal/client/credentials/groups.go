package credentials

import "syscall"

// Groups returns the supplementary groups that the process behind a connection had when it
// connected; none if the kernel does not say.
func Groups(c syscall.Conn) []int {
	list := peerGroups(c)
	out := make([]int, len(list))
	for i, g := range list {
		out[i] = int(g)
	}
	return out
}
