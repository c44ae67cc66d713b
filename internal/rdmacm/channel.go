package rdmacm

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"vrdma/internal/abi"
)

// A Channel is one open of the rdma_cm device: a queue of events.
//
// The client's descriptor is one end of a socket pair that holds exactly one byte
// while events are pending, so that poll, epoll and O_NONBLOCK work on it unhooked.
// We keep a duplicate of it to take the byte back; nothing that the client does with
// its end can make us wait.
type Channel struct {
	Name   uint32 // what MIGRATE_ID calls it
	client *Client
	ids    map[*ID]struct{}
	events []*event
	fd     int // our end
	peer   int // duplicate of the client's
	raised bool
	closed bool
}

// An event waits to be read.
type event struct {
	id    *ID    // whose events_reported it counts for
	child *ID    // CONNECT_REQUEST: the new identifier
	group *Group // MULTICAST_*
	resp  abi.CMEventResp
}

// NewChannel makes a channel and returns the client's end besides.
func (c *Client) NewChannel() (*Channel, int, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, -1, fmt.Errorf("event channel: %w", err)
	}
	ch := &Channel{client: c, ids: make(map[*ID]struct{}), fd: fds[0]}
	ch.peer, err = unix.FcntlInt(uintptr(fds[1]), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		if ch.Name, err = c.channels.add(ch); err != nil {
			unix.Close(ch.peer)
		}
	}
	if err != nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return nil, -1, fmt.Errorf("event channel: %w", err)
	}
	return ch, fds[1], nil
}

// Close destroys the channel and every identifier on it, which closes their
// connections.
func (ch *Channel) Close() {
	if ch.closed {
		return
	}
	for id := range ch.ids {
		id.destroy()
	}
	ch.closed = true
	ch.client.channels.remove(ch.Name)
	unix.Close(ch.fd)
	unix.Close(ch.peer)
}

// post queues an event.
func (ch *Channel) post(e *event) {
	ch.events = append(ch.events, e)
	ch.signal()
}

// signal makes the descriptor readable while there are events, and only then.
func (ch *Channel) signal() {
	one := [1]byte{1}
	switch pending := len(ch.events) > 0; {
	case ch.closed || pending == ch.raised:
	case pending:
		_, err := unix.SendmsgN(ch.fd, one[:], nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		ch.raised = err == nil
	default:
		unix.Recvfrom(ch.peer, one[:], unix.MSG_DONTWAIT)
		ch.raised = false
	}
}

// GetEvent takes the first event; EAGAIN if there is none.
func (ch *Channel) GetEvent() (*abi.CMEventResp, error) {
	if len(ch.events) == 0 {
		return nil, syscall.EAGAIN
	}
	e := ch.events[0]
	ch.events[0] = nil
	ch.events = ch.events[1:]
	e.id.reported++
	if e.group != nil {
		e.group.reported++
	}
	if e.child != nil {
		e.id.waiting--
		e.child.pending = false
	}
	ch.signal()
	return &e.resp, nil
}

// withdraw takes back the events for which mine is true.
func (ch *Channel) withdraw(mine func(*event) bool) (taken []*event) {
	kept := ch.events[:0]
	for _, e := range ch.events {
		if mine(e) {
			taken = append(taken, e)
		} else {
			kept = append(kept, e)
		}
	}
	clear(ch.events[len(kept):])
	ch.events = kept
	ch.signal()
	return taken
}
