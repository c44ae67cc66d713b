// Package gate stops goroutines at places where they hold no message, so that the state of what they serve is complete. A
// live upgrade reads the state there (server/freeze.go, vm/freeze.go).
//
//	goroutine:   Wait for a message ── Enter ── read, run, answer ── Leave ── Wait …
//	freezer:     Close: waits until no goroutine is between Enter and Leave, and keeps them out ── Open
//
// A message that arrives while the gate is closed stays in its socket, where the next daemon finds it. The loop does not pass a
// gate: Server.paused keeps it from reading requests.
package gate

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// A Gate is open at first.
type Gate struct {
	mu      sync.RWMutex // held for reading between Enter and Leave
	closing atomic.Bool  // a freezer waits, or has the gate closed

	wait   sync.Mutex
	opened chan struct{} // guarded by wait; nil: the gate is open. Closed when it opens
}

// Enter is called after a message has arrived, before it is read.
func (g *Gate) Enter() { g.mu.RLock() }

// Leave is called before waiting for a message.
func (g *Gate) Leave() { g.mu.RUnlock() }

// Outside calls f, which waits, outside of the gate.
func (g *Gate) Outside(f func()) {
	g.Leave()
	defer g.Enter()
	f()
}

// Closing reports whether a freezer waits, or has the gate closed.
func (g *Gate) Closing() bool { return g.closing.Load() }

// Close closes the gate. It fails when ctx ends before all goroutines have left; the gate is open then. what names their work in the
// error. interrupt makes goroutines leave that wait inside. settled reports whether no goroutine is about to enter with work that it
// holds already.
func (g *Gate) Close(ctx context.Context, what string, interrupt func(), settled func() bool) error {
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
			return fmt.Errorf("%s does not end: %w", what, ctx.Err())
		case <-time.After(wait):
		}
	}
}

// Open undoes Close.
func (g *Gate) Open() {
	g.mu.Unlock()
	g.reopen()
}

func (g *Gate) reopen() {
	g.closing.Store(false)
	g.wait.Lock()
	close(g.opened)
	g.opened = nil
	g.wait.Unlock()
}

// AwaitOpen waits until the gate is open, for goroutines that wait inside and were interrupted.
func (g *Gate) AwaitOpen() {
	g.wait.Lock()
	opened := g.opened
	g.wait.Unlock()
	if opened != nil {
		<-opened
	}
}

// Await waits outside of the gate until c has a message, or has ended.
func (g *Gate) Await(c interface{ Wait() error }) (err error) {
	g.Outside(func() { err = c.Wait() })
	return err
}
