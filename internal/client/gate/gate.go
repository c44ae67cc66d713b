package server

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// A gate stops the goroutines of connections at places where they hold no message, so that the state of all sessions
// is complete: a live upgrade reads it there (freeze.go).
//
//	goroutine:   Wait for a message ── enter ── read, run, answer ── leave ── Wait …
//	freezer:     close: waits until no goroutine is between enter and leave, and keeps them out ── open
//
// A message that arrives while the gate is closed stays in its socket, where the next daemon finds it. The loop does
// not pass the gate: Server.paused keeps it from reading requests.
type gate struct {
	mu      sync.RWMutex // held for reading between enter and leave
	closing atomic.Bool  // a freezer waits, or has the gate closed

	wait   sync.Mutex
	opened chan struct{} // guarded by wait; nil: the gate is open. Closed when it opens
}

// enter is called after a message has arrived, before it is read.
func (g *gate) enter() { g.mu.RLock() }

// leave is called before waiting for a message.
func (g *gate) leave() { g.mu.RUnlock() }

// outside calls f, which waits, outside of the gate.
func (g *gate) outside(f func()) {
	g.leave()
	defer g.enter()
	f()
}

// close closes the gate. It fails when ctx ends before all goroutines have left; the gate is open then. interrupt
// makes goroutines leave that wait inside. settled reports whether no goroutine is about to enter with work that it
// holds already.
func (g *gate) close(ctx context.Context, interrupt func(), settled func() bool) error {
	g.wait.Lock()
	g.opened = make(chan struct{})
	g.wait.Unlock()
	g.closing.Store(true)
	for wait := 20 * time.Microsecond; ; wait = min(2*wait, time.Millisecond) {
		interrupt()
		// Lock would keep new goroutines out while it waits for one that has to wait for a client.
		if g.mu.TryLock() {
			if settled() {
				return nil
			}
			g.mu.Unlock()
		}
		select {
		case <-ctx.Done():
			g.reopen()
			return fmt.Errorf("a command of a program does not end: %w", ctx.Err())
		case <-time.After(wait):
		}
	}
}

// open undoes close.
func (g *gate) open() {
	g.mu.Unlock()
	g.reopen()
}

func (g *gate) reopen() {
	g.closing.Store(false)
	g.wait.Lock()
	close(g.opened)
	g.opened = nil
	g.wait.Unlock()
}

// awaitOpen waits until the gate is open, for goroutines that accept connections.
func (g *gate) awaitOpen() {
	g.wait.Lock()
	opened := g.opened
	g.wait.Unlock()
	if opened != nil {
		<-opened
	}
}

// await waits outside of the gate until c has a message, or has ended.
func (g *gate) await(c *protocol.Conn) (err error) {
	g.outside(func() { err = c.Wait() })
	return err
}
