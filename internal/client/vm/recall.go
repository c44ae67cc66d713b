package vm

import (
	"vrdma.dev/vrdma/internal/client/vm/vmproto"
)

// Unread events of a program are in the guest. A command that destroys an object withdraws the object's events (nic/events.go),
// and returns how many the program has read, because it waits until it has acknowledged as many. So before such a command:
//
//	hold every sink that has sent something ─▶ Recall ─▶ the agent empties the handles
//	   Returned ─▶ the events are put back ─▶ the command runs, and takes its own ─▶ the rest is sent
//
// An event that the program reads before the agent withdraws it counts as read, as with a kernel.

// mostReturned is the maximum number of events that an agent may return: more than a program can have.
const mostReturned = 1 << 17

// recall withdraws unread events. The sinks are held until release.
func (c *conversation) recall() {
	c.mu.Lock()
	any := false
	for s := range c.sinks {
		any = s.hold() || any
	}
	c.recalling = any
	select {
	case <-c.returned: // an answer for an earlier caller that gave up
	default:
	}
	c.recalled = any && !c.ended
	c.mu.Unlock()
	if !any {
		return
	}
	c.m.link.sendLater(vmproto.Recall, c.id)
	select {
	case list := <-c.returned:
		c.give(list)
	case <-c.leaving:
	}
}

// takeReturned stores the unread events that the agent returns. Events that were not requested are ignored.
func (c *conversation) takeReturned(list []vmproto.Returning) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !c.recalled:
	case len(list) == 0:
		c.recalled = false
		c.unkeep(returnBytes * len(c.returning))
		c.returned <- c.returning // never blocks: the channel is empty
		c.returning = nil
	case len(c.returning)+len(list) > mostReturned:
		c.leave()
	case c.keep(returnBytes * len(list)):
		c.returning = append(c.returning, list...)
	}
}

// give returns events to their sinks.
func (c *conversation) give(list []vmproto.Returning) {
	events := make(map[uint32][]event)
	for _, r := range list {
		events[r.Handle] = append(events[r.Handle], event{r.Event, r.N})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.sinks {
		if l := events[s.id]; l != nil {
			s.give(l)
		}
	}
}

// release ends the hold after the command has been answered.
func (c *conversation) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.recalling {
		return
	}
	c.recalling = false
	for s := range c.sinks {
		s.release()
	}
}
