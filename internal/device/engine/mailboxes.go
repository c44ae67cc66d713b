package engine

import (
	"fmt"
	"slices"

	"vrdma.dev/vrdma/internal/ib"
)

// A Mailbox is memory in which a client leaves requests while both the client and the loop are
// awake, so that a request costs no system call. Serve serves the request there. The loop calls
// its methods.
//
//	                    Look                   silent for mailboxTime, or the loop sleeps
//	shut ──────────────────────────────▶ open ────────────────────────────────────────────▶ shut
//	      after a request on the connection    (Shut; earlier requests are served first)
//
// While a mailbox is open the loop looks into it in every pass. A client that finds it shut uses
// its connection, which wakes the loop.
type Mailbox = interface {
	Handler
	// Asked reports whether there is a request.
	Asked() bool
	// Shut tells the client that the loop does not look any more. It reports whether the client
	// left a request before.
	Shut() bool
}

// mailboxes are the open ones.
type mailboxes struct {
	open []openMailbox
	next int // index in open of the next one to look into
}

type openMailbox struct {
	fd   int32 // of its connection
	box  Mailbox
	last ib.Time // when it had a request
}

const (
	// mostMailboxes bounds the open ones: the loop looks into each in every pass.
	mostMailboxes = 64
	// mailboxTime is how long a silent one stays open.
	mailboxTime = ib.Time(200_000)
)

// Look opens the mailbox of connection fd, unless too many are open, and reports whether it is open
// then. It runs on the loop.
func (e *Engine) Look(fd int, b Mailbox) bool {
	return e.first.handlers.boxes.add(fd, b, e.first.clock.now)
}

// Leave undoes Look; the mailbox itself does not change. It runs on the loop.
func (e *Engine) Leave(fd int) { e.first.handlers.boxes.drop(fd) }

// add opens the mailbox of connection fd, unless too many are open.
func (x *mailboxes) add(fd int, b Mailbox, now ib.Time) bool {
	if x.index(fd) >= 0 {
		return true
	}
	if len(x.open) == mostMailboxes {
		return false
	}
	x.open = append(x.open, openMailbox{int32(fd), b, now})
	return true
}

// drop undoes add.
func (x *mailboxes) drop(fd int) {
	if i := x.index(fd); i >= 0 {
		x.remove(i)
	}
}

func (x *mailboxes) index(fd int) int {
	for i := range x.open {
		if x.open[i].fd == int32(fd) {
			return i
		}
	}
	return -1
}

func (x *mailboxes) remove(i int) { x.open = slices.Delete(x.open, i, i+1) }

// pollMailboxes adds those that have a request to the connections that are ready, at most
// commandsPerPass, and shuts those that have been silent.
func (h *handlerSet) pollMailboxes(now ib.Time) {
	x := &h.boxes
	defer x.contain()
	for i := len(x.open); i > 0 && h.n < commandsPerPass; i-- {
		if x.next >= len(x.open) {
			x.next = 0
		}
		o := &x.open[x.next]
		if o.box.Asked() {
			o.last = now
			h.found(o, false)
		} else if now-o.last > mailboxTime {
			h.shutMailbox()
			continue
		}
		x.next++
	}
}

// shutMailboxes shuts all before the loop sleeps. It returns false if one has a request.
func (h *handlerSet) shutMailboxes() bool {
	x := &h.boxes
	if len(x.open) == 0 {
		return true
	}
	defer x.contain()
	for x.next = 0; len(x.open) > 0 && h.n < commandsPerPass; {
		h.shutMailbox()
	}
	return h.at == h.n
}

// shutMailbox shuts the next one. A request that it still holds is served.
func (h *handlerSet) shutMailbox() {
	x := &h.boxes
	if o := &x.open[x.next]; o.box.Shut() {
		h.found(o, true)
	}
	x.remove(x.next)
}

// found adds o, which may be shut already, to the connections that are ready.
func (h *handlerSet) found(o *openMailbox, shut bool) {
	h.ready[h.n] = readyHandler{o.fd, o.box, true, shut}
	h.n++
}

// contain is deferred: after a fault in the memory of the next mailbox it closes that mailbox and
// fails its connection.
func (x *mailboxes) contain() {
	r := recover()
	if r == nil {
		return
	}
	if _, fault := r.(interface{ Addr() uintptr }); !fault || x.next >= len(x.open) {
		panic(r)
	}
	o := x.open[x.next]
	x.remove(x.next)
	o.box.Fail(fmt.Errorf("memory fault in a client's mailbox: %v", r))
}
