package stream

import (
	"net"

	"vrdma.dev/vrdma/verbs"
)

// await waits until ready, of which c.mu is held, or for the deadline. Of those who wait one takes the
// completions, for all.
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

// spin looks for a while whether something happens, before a goroutine sleeps. c.mu is held before and
// after, not meanwhile: the other half of the connection goes on. One that has looked in vain lately looks
// only now and then.
func (c *Conn) spin(ready func() bool) (worthwhile bool) {
	if c.misses++; c.misses > fewMisses && c.misses%lookAgain != 0 {
		return false
	}
	for range looks {
		c.mu.Unlock()
		any, err := c.cq.Spin(look)
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

// sleep waits for something to happen.
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
	c.progress() // what came before the arming rings no bell
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

// broadcast wakes those who wait for something to happen. c.mu is held.
func (c *Conn) broadcast() {
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}

// progress takes the completions that are there. c.mu is held.
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
				c.left(w)
			}
		}
		if n < len(c.wc) {
			return
		}
	}
}

// arrived takes a message of the peer.
func (c *Conn) arrived(w *verbs.WC) {
	if w.Err() != nil {
		c.broken(w)
		return
	}
	arg := w.Imm & opMask
	switch w.Imm >> opShift {
	case opData:
		if c.count == len(c.messages) || c.unread+int(arg) > len(c.in.mem)+len(c.growth.in.mem) {
			c.fail(errHello) // more than it was promised
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
		c.findRoom()
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

// broken notes that the queue pair has ended. The first request that failed says why; those behind it
// are flushed, as they are when the peer has gone in good order.
func (c *Conn) broken(w *verbs.WC) {
	if w.Status != verbs.Flushed && !c.gone {
		c.fail(w.Status)
	}
	c.ended, c.gone = true, true
}

// left notes that a message of ours has been delivered.
func (c *Conn) left(w *verbs.WC) {
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
		c.tell()
	}
}
