package credentials

import "syscall"

// Groups returns the supplementary groups of the process behind a connection at the time of connect; none if the kernel does not know.
func Groups(c syscall.Conn) []int {
	list := peerGroups(c)
	out := make([]int, len(list))
	for i, g := range list {
		out[i] = int(g)
	}
	return out
}
