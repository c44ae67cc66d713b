package engine

import (
	"fmt"
	"slices"

	"vrdma.dev/vrdma/internal/ib"
)

// A Box is where a client that is awake leaves requests for a loop that is awake: memory that
// they share, so that a request costs no system call. Serve serves the request there. Its
// methods are called on the loop.
//
//	                    Look                   silent for boxTime, or the loop sleeps
//	shut ──────────────────────────────▶ open ────────────────────────────────────────▶ shut
//	      after a request on the line          (Shut; what came before is served first)
//
// While a box is open the loop looks into it in every pass. A client that finds it shut uses
// its line, which wakes the loop.
type Box = interface {
	Line
	// Asked reports whether there is a request.
	Asked() bool
	// Shut tells the client that nobody looks any more. It reports whether there is a
	// request that came before.
	Shut() bool
}

// boxes are the open ones.
type boxes struct {
	open []openBox
	next int // among open: who is looked at next
}

type openBox struct {
	fd   int32 // of its line
	box  Box
	last ib.Time // when it had a request
}

const (
	// mostBoxes is how many may be open: the loop looks into each in every pass.
	mostBoxes = 64
	// boxTime is how long a silent one stays open.
	boxTime = ib.Time(200_000)
)

// Look has the loop look into the box of line fd from now on, unless too many are open; it
// reports whether it does. It runs on the loop.
func (e *Engine) Look(fd int, b Box) bool {
	x := &e.lines.boxes
	if x.index(fd) >= 0 {
		return true
	}
	if len(x.open) == mostBoxes {
		return false
	}
	x.open = append(x.open, openBox{int32(fd), b, e.now})
	return true
}

// Leave undoes Look; the box stays as it is. It runs on the loop.
func (e *Engine) Leave(fd int) {
	if i := e.lines.boxes.index(fd); i >= 0 {
		e.lines.boxes.remove(i)
	}
}

func (x *boxes) index(fd int) int {
	for i := range x.open {
		if x.open[i].fd == int32(fd) {
			return i
		}
	}
	return -1
}

func (x *boxes) remove(i int) { x.open = slices.Delete(x.open, i, i+1) }

// lookIntoBoxes puts those that have a request among the lines that are ready, commandsPerPass
// at most, and shuts those that have been silent.
func (e *Engine) lookIntoBoxes() {
	x := &e.lines.boxes
	defer e.containBox()
	for i := len(x.open); i > 0 && e.lines.n < commandsPerPass; i-- {
		if x.next >= len(x.open) {
			x.next = 0
		}
		o := &x.open[x.next]
		if o.box.Asked() {
			o.last = e.now
			e.lines.found(o, false)
		} else if e.now-o.last > boxTime {
			e.shutBox()
			continue
		}
		x.next++
	}
}

// shutBoxes shuts all, before the loop sleeps; false if one has a request.
func (e *Engine) shutBoxes() bool {
	x := &e.lines.boxes
	if len(x.open) == 0 {
		return true
	}
	defer e.containBox()
	for x.next = 0; len(x.open) > 0 && e.lines.n < commandsPerPass; {
		e.shutBox()
	}
	return e.lines.at == e.lines.n
}

// shutBox shuts the next. What came before is served all the same.
func (e *Engine) shutBox() {
	x := &e.lines.boxes
	if o := &x.open[x.next]; o.box.Shut() {
		e.lines.found(o, true)
	}
	x.remove(x.next)
}

// found puts o, which may be shut, among the lines that are ready.
func (l *lineSet) found(o *openBox, shut bool) {
	l.ready[l.n] = readyLine{o.fd, o.box, true, shut}
	l.n++
}

// containBox tells a line of whose box the memory cannot be reached.
func (e *Engine) containBox() {
	r := recover()
	if r == nil {
		return
	}
	x := &e.lines.boxes
	if _, fault := r.(interface{ Addr() uintptr }); !fault || x.next >= len(x.open) {
		panic(r)
	}
	o := x.open[x.next]
	x.remove(x.next)
	o.box.Fail(fmt.Errorf("memory fault in a client's mailbox: %v", r))
}
