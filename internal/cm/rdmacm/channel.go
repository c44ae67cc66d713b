package rdmacm

import (
	"fmt"
	"slices"
	"syscall"

	"vrdma.dev/vrdma/internal/abi"
)

// A Signal tells a client that its channel has events; it asks for them by command. For a
// process it is a socket pair (package eventfile) that holds one byte meanwhile, so that
// poll, epoll and O_NONBLOCK work on the client's descriptor unhooked; a virtual machine's
// will be a message to an agent there. It never waits.
type Signal interface {
	// Raise says that there are events; false if it could not be said. Lower takes that
	// back.
	Raise() bool
	Lower()
	Close()
}

// A Channel is one open of the rdma_cm device: a queue of events.
type Channel struct {
	Name   uint32 // what MIGRATE_ID calls it
	client *Client
	ids    map[*ID]struct{}
	events []*event
	signal Signal
	raised bool
	closed bool
	ahead  Ahead // nil: nobody
	shelf  shelf
}

// An event waits to be read.
type event struct {
	id    *ID    // whose events_reported it counts for
	child *ID    // CONNECT_REQUEST: the new identifier
	group *Group // MULTICAST_*
	resp  abi.CMEventResp
}

// NewChannel makes a channel. open opens its signal, if there may be one more.
func (c *Client) NewChannel(open func() (Signal, error)) (*Channel, error) {
	ch := &Channel{client: c, ids: make(map[*ID]struct{})}
	var err error
	if ch.Name, err = c.channels.add(ch); err != nil {
		return nil, fmt.Errorf("event channel: %w", err)
	}
	if ch.signal, err = open(); err != nil {
		c.channels.remove(ch.Name)
		return nil, fmt.Errorf("event channel: %w", err)
	}
	return ch, nil
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
	ch.signal.Close()
}

// post queues an event.
func (ch *Channel) post(e *event) {
	ch.settle()
	ch.events = append(ch.events, e)
	ch.lay()
	ch.announce()
}

// announce raises the signal while there are events, and only then.
func (ch *Channel) announce() {
	if ch.ahead != nil {
		ch.ahead.SetEvents(len(ch.events))
	}
	switch pending := len(ch.events) > 0; {
	case ch.closed || pending == ch.raised:
	case pending:
		ch.raised = ch.signal.Raise()
	default:
		ch.signal.Lower()
		ch.raised = false
	}
}

// GetEvent takes the first event; EAGAIN if there is none.
func (ch *Channel) GetEvent() (*abi.CMEventResp, error) {
	if !ch.claim() {
		return nil, syscall.EAGAIN
	}
	e := ch.pop()
	ch.lay() // so that one who has many to read asks for the first of each shelf only
	ch.announce()
	return &e.resp, nil
}

// pop takes the first event.
func (ch *Channel) pop() *event {
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
	return e
}

// withdraw takes back the events for which mine is true.
func (ch *Channel) withdraw(mine func(*event) bool) (taken []*event) {
	ch.settle()
	if !slices.ContainsFunc(ch.events, mine) {
		return nil
	}
	ch.clear()
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
	ch.refill()
	ch.announce()
	return taken
}
