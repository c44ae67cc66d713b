package verbs

import (
	"context"
	"errors"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"vrdma.dev/vrdma/internal/abi"
)

// All completion queues of a device share one descriptor for their events, the completion channel.
// Whoever waits reads it, one at a time, and hands what is for others to them:
//
//	Wait ── arm, poll once more ──▶ is somebody reading the channel?
//	                                  no:  read it, until the event is mine
//	                                  yes: sleep until my event is handed to me, or until it is
//	                                       my turn to read
//
// So a program with one goroutine that waits has no other that wakes it. CQ.Wake is for those who wait
// for several things at a time: with its first use a goroutine begins to read for all.

// completionChannel is the device's, made at first use.
func (d *Device) completionChannel() (int32, error) {
	d.mu.Lock()
	have, id := d.channel != nil, d.channelID
	d.mu.Unlock()
	if have {
		return id, nil
	}
	var r abi.CreateCompChannelResp
	fds, err := exec(d, abi.CmdCreateCompChannel, &abi.CreateCompChannel{Response: d.response()}, nil, decode(&r))
	if err != nil {
		return 0, err
	}
	f, err := d.eventFile(fds, r.FD)
	if err != nil {
		return 0, err
	}
	id = int32(r.FD)
	if len(fds) == 1 {
		id = fds[0].ID
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.channel != nil || d.closed { // somebody else was faster
		f.Close()
		return d.channelID, nil
	}
	d.channel, d.channelID = f, id
	d.reader <- struct{}{}
	return id, nil
}

// readChannel reads the completion channel for all, for those who use Wake. It ends with the device.
func (d *Device) readChannel() {
	select {
	case <-d.reader:
	case <-d.ended:
		return
	}
	for {
		if _, err := d.readEvent(nil); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			d.end()
			return
		}
	}
}

// readEvent takes one event from the channel and hands it to the queue that it is of; mine: that is
// the reader's own, who needs no handing. The caller has d.reader. A deadline is an interruption, see
// interrupt.
func (d *Device) readEvent(own *CQ) (mine bool, err error) {
	n, err := d.channel.Read(d.event[:])
	if errors.Is(err, os.ErrDeadlineExceeded) {
		_ = d.channel.SetReadDeadline(time.Time{})
		return false, err
	}
	if err != nil {
		return false, err
	}
	var e abi.CompEvent
	if n == 0 {
		return false, ErrGone
	}
	if !abi.Decode(d.event[:n], &e) {
		return false, nil
	}
	if o, ok := d.objects.Load(e.CQHandle); ok {
		c, ok := o.(*CQ)
		switch {
		case ok && c == own:
			return true, nil
		case ok:
			c.notify()
		}
	}
	return false, nil
}

// interrupt has whoever reads the channel look whether to go on.
func (d *Device) interrupt() {
	d.mu.Lock()
	f := d.channel
	d.mu.Unlock()
	if f != nil {
		_ = f.SetReadDeadline(longAgo)
	}
}

var longAgo = time.Unix(1, 0)

func (c *CQ) notify() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Wait waits until there is something to poll. It looks for some microseconds, if that has been worth
// it lately; then the goroutine sleeps, and no thread does.
func (c *CQ) Wait(ctx context.Context) error { return c.wait(ctx, false) }

// WaitSolicited is Wait for completions that the sender marked Solicited, and for errors.
func (c *CQ) WaitSolicited(ctx context.Context) error { return c.wait(ctx, true) }

// Sleep is Wait without looking first, for those who expect nothing soon.
func (c *CQ) Sleep(ctx context.Context) error {
	if any, err := c.waiting(); err != nil || any {
		return err
	}
	return c.armed(ctx, false)
}

func (c *CQ) wait(ctx context.Context, solicited bool) error {
	if any, err := c.glance(); err != nil || any {
		return err
	}
	return c.armed(ctx, solicited)
}

// armed arms the queue and sleeps until there is something to poll.
func (c *CQ) armed(ctx context.Context, solicited bool) error {
	for {
		if err := c.arm(solicited); err != nil {
			return fault("wait for a completion", err)
		}
		// What came before the arming rings no bell.
		if any, err := c.waiting(); err != nil || any {
			return err
		}
		if err := c.sleep(ctx); err != nil {
			return err
		}
		if any, err := c.waiting(); err != nil || any {
			return err
		}
	}
}

// Wait looks for a while before it arms the queue and sleeps. To sleep and be woken through the
// runtime's poller takes 15 to 40 us, some of it of the processor; most answers come sooner. A queue
// whose looks have been in vain lately is looked at only now and then.
const (
	glanceTime = 20 * time.Microsecond
	fewMisses  = 4  // so many looks in vain in a row, and Wait sleeps at once
	lookAgain  = 64 // but for every so many waits
)

// glance looks for a moment whether there is something to poll, if that has been worth it lately.
func (c *CQ) glance() (bool, error) {
	if misses := c.misses.Load(); misses >= fewMisses && misses%lookAgain != 0 {
		c.misses.Add(1)
		return c.waiting()
	}
	any, err := c.Spin(glanceTime)
	if any {
		c.misses.Store(0)
	} else {
		c.misses.Add(1)
	}
	return any, err
}

// sleep waits for the queue's event, or for something that has to be looked at.
func (c *CQ) sleep(ctx context.Context) error {
	d := c.d
	select {
	case <-d.reader:
	default:
		select {
		case <-d.reader:
		case <-c.wake:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-d.ended:
			return fault("wait for a completion", d.err())
		}
	}
	defer func() { d.reader <- struct{}{} }()
	if done := ctx.Done(); done != nil {
		// The deadline of the channel is how a reader is interrupted.
		stop := context.AfterFunc(ctx, d.interrupt)
		defer stop()
	}
	for {
		select {
		case <-c.wake: // handed over before it was our turn
			return nil
		default:
		}
		// Now, and not before it was our turn: an interruption that was for us may have gone to
		// the reader before us.
		if err := ctx.Err(); err != nil {
			return err
		}
		if any, err := c.waiting(); err != nil || any {
			return err
		}
		mine, err := d.readEvent(c)
		switch {
		case mine:
			return nil
		case err != nil && !errors.Is(err, os.ErrDeadlineExceeded):
			d.end()
			return fault("wait for a completion", d.err())
		}
	}
}

// spinning counts the goroutines of this program that are in Spin. Each has a processor of the runtime's
// to itself, which others may need to bring what is waited for: more than half of them never spin.
var (
	spinning atomic.Int32
	spinners = int32(max(1, runtime.GOMAXPROCS(0)/2))
)

// Spin looks for a while whether there is something to poll, and gives way to others meanwhile. It is
// for those who expect an answer within microseconds: to sleep and be woken takes longer. It returns at
// once if too many of this program's goroutines do the same.
func (c *CQ) Spin(most time.Duration) (bool, error) {
	defer spinning.Add(-1)
	if spinning.Add(1) > spinners {
		return c.waiting()
	}
	start := time.Now()
	for {
		for range yieldEvery {
			if r := c.look.Load(); r != nil && r.empty() {
				if err := c.vain(1); err != nil {
					return false, err
				}
				continue
			}
			any, err := c.waiting()
			if any || err != nil {
				return any, err
			}
			if err := c.vain(1); err != nil {
				return false, err
			}
		}
		if time.Since(start) >= most {
			return false, nil
		}
	}
}

// Next polls, and waits while there is nothing.
func (c *CQ) Next(ctx context.Context, wc []WC) (int, error) {
	for {
		if n, err := c.Poll(wc); n > 0 || err != nil {
			return n, err
		}
		if err := c.Wait(ctx); err != nil {
			return 0, err
		}
	}
}

// Arm asks for a value in Wake with the next completion, or the next one that the sender marked
// Solicited. What came before rings no bell: poll once more before waiting. For those who wait for
// several things at a time; Wait does it all.
func (c *CQ) Arm(solicited bool) error { return fault("wait for a completion", c.arm(solicited)) }

// Wake has a value after Arm, when there may be something to poll.
func (c *CQ) Wake() <-chan struct{} {
	c.d.reading.Do(func() { go c.d.readChannel() })
	return c.wake
}

func (c *CQ) arm(solicited bool) error {
	if c.d.door.Arm(c.handle, solicited) {
		return nil
	}
	req := abi.ReqNotifyCQ{CQHandle: c.handle}
	if solicited {
		req.SolicitedOnly = 1
	}
	_, err := exec(c.d, abi.CmdReqNotifyCQ, &req, nil, answer{})
	return err
}
