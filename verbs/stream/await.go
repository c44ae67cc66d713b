package stream

import (
	"net"

	"vrdma.dev/vrdma/verbs"
)

// await waits until ready returns true, or until the deadline. The caller holds c.mu. One waiting goroutine
// processes the completions for all.
func (c *Conn) await(d *deadline, ready func() bool) error {
	for {
		limit := d.wait()
		switch {
		case isClosed(c.closing):
			return net.ErrClosed
		case isClosed(limit):
			return errTimeout
		}
		c.progress()
		if ready() {
			return nil
		}
		if c.err != nil {
			return c.err
		}
		if c.spin(ready) {
			continue
		}
		if err := c.sleep(limit, ready); err != nil {
			return err
		}
	}
}

// spin polls for a while before the goroutine sleeps. It releases c.mu meanwhile, so that the other
// direction can progress. After several unsuccessful polling phases it polls only in every pollAgain-th wait.
func (c *Conn) spin(ready func() bool) (worthwhile bool) {
	if c.misses++; c.misses > maxMisses && c.misses%pollAgain != 0 {
		return false
	}
	for range spinRounds {
		c.mu.Unlock()
		any, err := c.cq.Spin(spinTime)
		c.mu.Lock()
		if any {
			c.progress()
		}
		if err != nil {
			c.fail(err)
		}
		if ready() || c.err != nil || isClosed(c.closing) {
			c.misses = 0
			return true
		}
	}
	return false
}

// sleep waits for a change.
func (c *Conn) sleep(limit chan struct{}, ready func() bool) error {
	changed := c.changed
	if changed == nil {
		changed = make(chan struct{})
		c.changed = changed
	}
	c.mu.Unlock()
	select {
	case <-c.leader:
		defer func() {
			c.broadcast()
			c.leader <- struct{}{}
		}()
	case <-changed:
		c.mu.Lock()
		return nil
	case <-limit:
		c.mu.Lock()
		return nil
	case <-c.closing:
		c.mu.Lock()
		return nil
	}
	err := c.cq.Arm(false)
	c.mu.Lock()
	if err != nil {
		c.fail(err)
		return err
	}
	c.progress() // completions before the arming give no event
	if ready() || c.err != nil {
		return nil
	}
	c.mu.Unlock()
	select {
	case <-c.cq.Wake():
	case <-changed:
	case <-limit:
	case <-c.closing:
	case <-c.cm.Done():
		c.mu.Lock()
		c.progress()
		c.ended, c.gone = true, true
		return nil
	case <-c.p.dev.Done():
		c.mu.Lock()
		c.fail(verbs.ErrGone)
		return nil
	}
	c.mu.Lock()
	return nil
}

// broadcast wakes all goroutines that wait for a change. The caller holds c.mu.
func (c *Conn) broadcast() {
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}

// progress processes the completions in the queue. The caller holds c.mu.
func (c *Conn) progress() {
	for {
		n, err := c.cq.Poll(c.wc[:])
		if err != nil {
			c.fail(err)
			return
		}
		for i := range n {
			if w := &c.wc[i]; w.ID == receive {
				c.arrived(w)
			} else {
				c.delivered(w)
			}
		}
		if n < len(c.wc) {
			return
		}
	}
}

// arrived processes a message of the peer.
func (c *Conn) arrived(w *verbs.WC) {
	if w.Err() != nil {
		c.broken(w)
		return
	}
	arg := w.Imm & opMask
	switch w.Imm >> opShift {
	case opData:
		if c.count == len(c.messages) || c.unread+int(arg) > len(c.in.mem)+len(c.growth.in.mem) {
			c.fail(errHello) // the peer sent more messages than allowed
			return
		}
		if arg > 0 {
			c.messages[(c.head+c.count)%len(c.messages)] = arg
			c.count++
			c.unread += int(arg)
		} else {
			c.taken++
		}
	case opSGL:
		c.promised = uint16(arg)
		c.readOffers()
	case opControl:
		switch {
		case arg == controlDisconnect, arg == controlShutdown && c.noWrite:
			c.ended, c.gone = true, true
		case arg == controlShutdown:
			c.ended = true
		}
	}
	if err := c.cm.QP().PostRecv(&verbs.RecvWR{ID: receive}); err != nil && !c.gone {
		c.fail(err)
	}
}

// broken records that the queue pair is in the error state. The first failed request has the reason. The
// requests after it are flushed, as they are after an orderly disconnect of the peer.
func (c *Conn) broken(w *verbs.WC) {
	if w.Status != verbs.Flushed && !c.gone {
		c.fail(w.Status)
	}
	c.ended, c.gone = true, true
}

// delivered records that a message of this side has been delivered.
func (c *Conn) delivered(w *verbs.WC) {
	c.flying--
	if w.Err() != nil {
		c.broken(w)
		return
	}
	if uint32(w.ID)>>opShift == opData {
		c.requests++
		c.returned(int(uint32(w.ID) & opMask))
	} else {
		c.control++
		c.offerSpace()
	}
}
