package tcpcount

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// A Count mirrors struct counts of shim/sockets/sockets.h: connections that did not use RDMA, by reason.
type Count struct {
	Refused   uint64 // connected by TCP: nobody listened on RDMA there
	Silent    uint64 // connected by TCP: RDMA did not reach the peer
	Accepted  uint64 // accepted by TCP: the peer did not come over RDMA
	Unmade    uint64 // sockets that rsockets did not make: no device, or in a fork child
	UDP       uint64 // UDP sockets
	Forked    uint64 // processes that wanted to use a connection that they inherited by fork
	Inherited uint64 // accepted by TCP, from a listener that was inherited by fork
}

var size = int64(binary.Size(Count{}))

// New creates the memory in which the program and its children count. They find it by its
// path in /proc, because some programs close inherited descriptors. It has no other name, so nothing
// is left when this process ends.
func New() (f *os.File, path string, err error) {
	fd, err := unix.MemfdCreate("vrdma-count", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, "", fmt.Errorf("memfd_create: %w", err)
	}
	f = os.NewFile(uintptr(fd), "vrdma-count")
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	if err := f.Truncate(size); err != nil {
		return nil, "", err
	}
	// The library recognises the memory by these values.
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return nil, "", fmt.Errorf("sealing it: %w", err)
	}
	// The process number in /proc, which may belong to an outer namespace.
	self, err := os.Readlink("/proc/self")
	if err != nil {
		return nil, "", err
	}
	return f, fmt.Sprintf("/proc/%s/fd/%d", self, fd), nil
}

// Read returns what has been counted so far.
func Read(f *os.File) (c Count) {
	b := make([]byte, size)
	if _, err := f.ReadAt(b, 0); err != nil {
		return c
	}
	binary.Decode(b, binary.NativeEndian, &c) // of the right size
	return c
}

// Summary reports the number of connections over RDMA, if it is known, and over TCP, with reasons.
func (c Count) Summary(rdma uint64, known bool) string {
	text := "an unknown number of connections went over RDMA"
	if known {
		text = count(rdma, "connection") + " went over RDMA"
	}
	if past := c.Refused + c.Silent + c.Accepted + c.Inherited; past > 0 {
		text += fmt.Sprintf(", %d over TCP", past)
	} else {
		text += ", none over TCP"
	}
	if why := c.reasons(); len(why) > 0 {
		text += " (" + strings.Join(why, "; ") + ")"
	}
	return text
}

// count formats a number of things.
func count(n uint64, thing string) string {
	switch {
	case n == 1:
		return "1 " + thing
	case strings.HasSuffix(thing, "s"):
		return fmt.Sprintf("%d %ses", n, thing)
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// reasons lists why connections did not use RDMA.
func (c Count) reasons() []string {
	var why []string
	for _, r := range []struct {
		n           uint64
		thing, text string
	}{
		{c.Refused, "connection", "to a peer that does not listen on RDMA: run it with vrdma run --sockets too"},
		{c.Silent, "connection", "to a peer that RDMA does not reach"},
		{c.Accepted, "connection", "from a peer without RDMA: run it with vrdma run --sockets too"},
		{c.Unmade, "socket", "that librspreload.so did not make: it found no RDMA device, or a fork came before"},
		{c.UDP, "UDP socket", "left to the kernel"},
		{c.Forked, "process", "made by fork that wanted to use an RDMA connection of the parent, which is not possible"},
		{c.Inherited, "connection", "to a server that hands its connections to child processes: RDMA connections do not survive fork"},
	} {
		if r.n > 0 {
			why = append(why, count(r.n, r.thing)+" "+r.text)
		}
	}
	return why
}
