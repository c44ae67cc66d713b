package vm

import (
	"vrdma.dev/vrdma/internal/client/vm/vmproto"
)

// What a program has not read of its events is in the machine. A command that destroys an object
// takes the object's events back (nic/events.go), and tells the program how many it has read: it
// waits until it has acknowledged as many. So before such a command
//
//	hold every sink that has sent something ─▶ Recall ─▶ the agent empties the handles
//	   Returned ─▶ the events are put back ─▶ the command runs, and takes its own ─▶ the rest is sent
//
// A program that reads an event before the agent takes it has read it, as with a kernel.

// mostReturned is how many events an agent may return: more than a program can have.
const mostReturned = 1 << 17

// recall takes back what the program has not read. The sinks are held until release.
func (c *conversation) recall() {
	c.mu.Lock()
	any := false
	for s := range c.sinks {
		any = s.hold() || any
	}
	c.recalling = any
	select {
	case <-c.returned: // for somebody who waits no more
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

// takeReturned takes what the agent says that nobody has read. What nobody asked for is left out.
func (c *conversation) takeReturned(list []vmproto.Returning) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !c.recalled:
	case len(list) == 0:
		c.recalled = false
		c.unkeep(returnBytes * len(c.returning))
		c.returned <- c.returning // which is empty
		c.returning = nil
	case len(c.returning)+len(list) > mostReturned:
		c.leave()
	case c.keep(returnBytes * len(list)):
		c.returning = append(c.returning, list...)
	}
}

// give puts events back.
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

// release ends the hold, when the command has been answered.
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
