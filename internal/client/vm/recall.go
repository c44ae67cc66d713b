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

// recall holds the sinks that may have unread events, until release. It reports whether there are any: then the caller asks the agent
// for the events. The caller holds mu.
func (c *conversation) recall() bool {
	any := false
	for s := range c.sinks {
		any = s.hold() || any
	}
	c.recalling, c.asked = any, any
	return any
}

// takeReturned stores the unread events that the agent returns. Events that were not requested are ignored.
func (c *conversation) takeReturned(list []vmproto.Returning) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !c.asked:
	case len(list) == 0:
		c.unkeep(returnBytes * len(c.returning))
		c.give(c.returning)
		c.asked, c.returning = false, nil
		c.look()
	case len(c.returning)+len(list) > mostReturned:
		c.leave()
	case c.keep(returnBytes * len(list)):
		c.returning = append(c.returning, list...)
	}
}

// give returns events to their sinks. The caller holds mu.
func (c *conversation) give(list []vmproto.Returning) {
	events := make(map[uint32][]event)
	for _, r := range list {
		events[r.Handle] = append(events[r.Handle], event{r.Event, r.N})
	}
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
