package rdmacm

import (
	"fmt"
	"slices"
	"syscall"

	"vrdma.dev/vrdma/internal/abi"
)

// A Signal tells a client that its channel has events, which it reads with commands. For a process it is a socket pair (package
// eventfile) that holds one byte meanwhile, so that poll, epoll and O_NONBLOCK work on the client's descriptor. For a virtual
// machine it is a message to its agent. It never blocks.
type Signal interface {
	// Raise signals that there are events; it returns false if that failed. Lower revokes the signal.
	Raise() bool
	Lower()
	Close()
}

// A Channel is one open of the rdma_cm device: a queue of events.
type Channel struct {
	Name   uint32 // its number in MIGRATE_ID
	client *Client
	ids    map[*ID]struct{}
	events []*event
	signal Signal
	raised bool
	closed bool
	ahead  Ahead // nil: none
	shelf  shelf
}

// An event is an unread event.
type event struct {
	id    *ID    // the ID whose events_reported counts it
	child *ID    // CONNECT_REQUEST: the new identifier
	group *Group // MULTICAST_*
	resp  abi.CMEventResp
}

// NewChannel creates a channel. open opens its signal, if the limits allow another one.
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

// Close destroys the channel with all its identifiers, which closes their connections.
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

// announce raises the signal if there are events, and lowers it otherwise.
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

// GetEvent takes the first event; it returns EAGAIN if there is none.
func (ch *Channel) GetEvent() (*abi.CMEventResp, error) {
	if !ch.claim() {
		return nil, syscall.EAGAIN
	}
	e := ch.pop()
	ch.lay() // so that a client with many events needs a command only for the first of each batch
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
	if e.resp.Event == abi.CMEventConnectRequest {
		e.id.waiting--
	}
	if e.child != nil {
		e.child.pending = false
	}
	return e
}

// withdraw removes the events for which mine returns true.
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
