package swapcheck

import (
	"fmt"
	"strings"
)

const (
	maxFrames = 12
	maxActors = 4
)

// A frame is a physical page; 0 is none.
type frame = int8

// The mapping at the address.
const (
	present  int8 = iota // a frame
	hole                 // nothing: an access fails
	vacant               // private memory without a page: the first access gets a fresh one
	guardedV             // the same under a userfaultfd: the kernel's access fails, a thread's waits
)

// A bits value has one bit for every write.
type bits = uint16

// An actor is its next step and the frame that it remembers.
type actor struct {
	pc   int8
	held frame
}

// A state is the whole state at one moment. It is comparable.
type state struct {
	data   [maxFrames]bits
	pins   [maxFrames]int8
	frames frame // in use so far

	mapping int8
	at      frame // under the address, if present
	scratch frame // under the scratch address
	memfd   frame // the page of the memfd, if any
	own     bool  // the memfd's page is registered
	halted  bool
	ring    bool // the process has an io_uring
	inCall  bool // the thread is in a system call that no halt interrupts
	covered bool // another region covers the page, as foreign memory
	reading bool // the daemon reads page tables: mmap and mremap wait

	made   bits // writes that succeeded
	actors [maxActors]actor
	broken string
}

// fresh is a new frame.
func (s *state) fresh() frame {
	s.frames++
	if s.frames == maxFrames {
		panic("swapcheck: too many frames")
	}
	return s.frames
}

func (s *state) fail(format string, args ...any) { s.broken = fmt.Sprintf(format, args...) }

// access is the result of an access to the address.
type access int

const (
	reached access = iota
	refused        // EFAULT, or SIGSEGV
	waits
)

// touch resolves the address for a write. A thread's own access waits under a userfaultfd; the
// kernel's is refused (user mode).
func (s *state) touch(kernel bool) (frame, access) {
	switch s.mapping {
	case hole:
		return 0, refused
	case guardedV:
		if kernel {
			return 0, refused
		}
		return 0, waits
	case vacant:
		s.at, s.mapping = s.fresh(), present
	}
	return s.at, reached
}

// A step is an actor's next action; false: it cannot continue now, and has changed nothing.
type step struct {
	said string
	do   func(s *state, a *actor) bool
}

// A program is the steps of an actor. An actor may stop before any optional step.
type program struct {
	name  string
	steps []step
}

func (p *program) do(said string, f func(s *state, a *actor) bool) {
	p.steps = append(p.steps, step{said, f})
}

// jump makes an actor continue at a step.
func (a *actor) jump(to int) bool { a.pc = int8(to); return true }

// A system is the actors and their initial state.
type system struct {
	programs []*program
	start    state
}

// verdict returns what is wrong when no actor can move.
func (y *system) verdict(s *state) string {
	for i, p := range y.programs {
		if pc := int(s.actors[i].pc); pc < len(p.steps) {
			return fmt.Sprintf("%s hangs at: %s", p.name, p.steps[pc].said)
		}
	}
	if s.mapping != present {
		return "nothing is mapped in the end"
	}
	if lost := s.made &^ s.data[s.at]; lost != 0 {
		return fmt.Sprintf("lost write: %b of %b are not in the page", lost, s.made)
	}
	return ""
}

// explore visits every state, nearest first. fault is empty, or describes the first faulty state and the steps that
// lead to it.
func (y *system) explore() (states int, fault string) {
	type node struct {
		state
		parent int
		by     string
	}
	nodes := []node{{state: y.start, parent: -1}}
	seen := map[state]bool{y.start: true}
	story := func(at int) string {
		var lines []string
		for ; nodes[at].parent >= 0; at = nodes[at].parent {
			lines = append([]string{nodes[at].by}, lines...)
		}
		return "\n  " + strings.Join(lines, "\n  ")
	}
	for at := 0; at < len(nodes); at++ {
		moved := false
		for i, p := range y.programs {
			next := nodes[at].state
			a := &next.actors[i]
			if int(a.pc) >= len(p.steps) {
				continue
			}
			now := p.steps[a.pc]
			a.pc++
			if !now.do(&next, a) {
				continue
			}
			moved = true
			if seen[next] {
				continue
			}
			seen[next] = true
			nodes = append(nodes, node{next, at, p.name + ": " + now.said})
			if next.broken != "" {
				return len(nodes), next.broken + story(len(nodes)-1)
			}
		}
		if !moved {
			if wrong := y.verdict(&nodes[at].state); wrong != "" {
				return len(nodes), wrong + story(at)
			}
		}
	}
	return len(nodes), ""
}
