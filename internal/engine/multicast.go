package engine

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"

	"vrdma/internal/link"
	"vrdma/internal/nic"
	"vrdma/internal/transport"
)

// This file is multicast: a datagram to a group goes to the members on this host, in
// memory, and to the network; what comes from there goes to the members.

// everyone is the queue pair number that datagrams to a group are for.
const everyone = 0xffffff

// memberCost is what a member costs at least of its sender's turn, in bytes.
const memberCost = 256

// multicast delivers b to the members on this host and, if there are others, to them.
func (e *Engine) multicast(from *nic.QP, b *transport.Burst) {
	members := e.nic.Multicast(b.DGID)
	for _, q := range members {
		e.receive(q, b)
	}
	from.Scratch().Extra += len(members) * max(int(b.Length), memberCost)
	if e.port != nil && !link.AddrOf(b.SGID).IsLoopback() {
		e.port.Send(b)
		e.toGroups.sent++
	}
}

// multicastCount counts datagrams to groups that went to and came from other hosts.
type multicastCount struct{ sent, received uint64 }

// Join implements nic.Link: the first queue pair of this host has joined a group.
func (e *Engine) Join(gid transport.GID) error {
	if e.port == nil {
		return nil
	}
	group := link.AddrOf(gid)
	fd, err := e.port.Join(group)
	if err != nil {
		e.opts.Log.Warn("a queue pair cannot be attached to a multicast group", "group", group, "why", err)
		return joinErrno(err)
	}
	if fd < 0 {
		return nil
	}
	if err := unix.EpollCtl(e.epfd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}); err != nil {
		e.port.Leave(group)
		return joinErrno(err)
	}
	e.groupFDs[int32(fd)] = false
	e.groups[gid] = int32(fd)
	return nil
}

// joinErrno is the errno for a program whose group could not be joined.
func joinErrno(err error) error {
	var errno syscall.Errno
	if !errors.Is(err, link.ErrGroups) && errors.As(err, &errno) && errno != unix.EMFILE && errno != unix.ENFILE {
		return errno
	}
	return syscall.ENOMEM
}

// Leave implements nic.Link: the last one has left.
func (e *Engine) Leave(gid transport.GID) {
	fd, ok := e.groups[gid]
	if !ok {
		return
	}
	delete(e.groups, gid)
	delete(e.groupFDs, fd)
	e.port.Leave(link.AddrOf(gid)) // the poller forgets what is closed
}

// groupReadable notes what the poller says of a group's descriptor, or of none.
func (e *Engine) groupReadable(fd int32) {
	if queued, ok := e.groupFDs[fd]; ok && !queued {
		e.groupFDs[fd] = true
		*e.groupsReady.push() = fd
	}
}

// groupsPerPass is of how many groups one pass takes a batch.
const groupsPerPass = 4

// pollGroups takes what has come for groups that are readable, a batch for each, in turns.
func (e *Engine) pollGroups() {
	for range min(e.groupsReady.n, groupsPerPass) {
		fd := *e.groupsReady.pop()
		if _, ok := e.groupFDs[fd]; !ok {
			continue // left meanwhile
		}
		if e.port.PollGroup(int(fd), members{e}) {
			*e.groupsReady.push() = fd
		} else {
			e.groupFDs[fd] = false
		}
	}
}

// members is the link.Receiver of what comes for groups.
type members struct{ e *Engine }

// Receive implements link.Receiver. Only datagrams for everyone count; nobody is told of
// congestion, because all members would tell at once.
func (m members) Receive(b *transport.Burst, _ bool) {
	e := m.e
	if b.Type != transport.UD || b.Dst != everyone || !nic.IsMulticast(&b.DGID) || e.nic.Local(&b.SGID) {
		return
	}
	e.toGroups.received++
	for _, q := range e.nic.Multicast(b.DGID) {
		e.current = q
		e.receive(q, b)
	}
	e.deliver()
}

// Congested implements link.Receiver: nobody tells a group of congestion.
func (m members) Congested(uint32, transport.GID) {}
