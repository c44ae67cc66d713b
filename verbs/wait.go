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

// All completion queues of a device share one descriptor for completion events, the completion channel.
// One waiting goroutine at a time reads it and passes events for other queues to their goroutines:
//
//	Wait ── arm, poll once more ──▶ is another goroutine reading the channel?
//	                                  no:  read it until my event comes
//	                                  yes: sleep until the reader passes my event to me, or
//	                                       until it is my turn to read
//
// So a program with one waiting goroutine needs no second goroutine to wake it. CQ.Wake serves programs
// that select on several channels: its first use starts a goroutine that reads the channel for all queues.

// completionChannel returns the device's completion channel and creates it at the first use.
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
	if d.channel != nil || d.closed { // another goroutine was faster
		f.Close()
		return d.channelID, nil
	}
	d.channel, d.channelID = f, id
	d.reader <- struct{}{}
	return id, nil
}

// readChannel reads the completion channel for all queues, for users of Wake, until the device is closed.
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

// readEvent reads one event from the channel and passes it to its queue. It returns mine if the event is
// for own, the reader's queue. The caller holds the token d.reader. A read deadline is an interruption,
// see interrupt.
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

// interrupt makes the goroutine that reads the channel check whether to continue.
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

// Wait waits until the queue has a completion to poll. It polls for some microseconds if recent waits ended
// that way; then the goroutine sleeps, without blocking a thread.
func (c *CQ) Wait(ctx context.Context) error { return c.wait(ctx, false) }

// WaitSolicited is Wait for completions that the sender marked Solicited, and for errors.
func (c *CQ) WaitSolicited(ctx context.Context) error { return c.wait(ctx, true) }

// Sleep is Wait without the polling phase, for callers that expect a long wait.
func (c *CQ) Sleep(ctx context.Context) error {
	if any, err := c.waiting(); err != nil || any {
		return err
	}
	return c.armed(ctx, false)
}

func (c *CQ) wait(ctx context.Context, solicited bool) error {
	if any, err := c.pollBriefly(); err != nil || any {
		return err
	}
	return c.armed(ctx, solicited)
}

// armed arms the queue and sleeps until there is a completion to poll.
func (c *CQ) armed(ctx context.Context, solicited bool) error {
	for {
		if err := c.arm(solicited); err != nil {
			return fault("wait for a completion", err)
		}
		// A completion before the arming gives no event.
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

// Wait polls for a while before it arms the queue and sleeps. Sleeping and waking through the runtime's
// poller takes 15 to 40 µs; most completions come sooner. After several waits in which polling found
// nothing, Wait polls only in every pollAgain-th wait.
const (
	pollTime  = 20 * time.Microsecond
	maxMisses = 4  // after this many unsuccessful polling phases in a row, Wait sleeps at once
	pollAgain = 64 // but polls again in every pollAgain-th wait
)

// pollBriefly polls for pollTime, unless recent polling phases found nothing.
func (c *CQ) pollBriefly() (bool, error) {
	if misses := c.misses.Load(); misses >= maxMisses && misses%pollAgain != 0 {
		c.misses.Add(1)
		return c.waiting()
	}
	any, err := c.Spin(pollTime)
	if any {
		c.misses.Store(0)
	} else {
		c.misses.Add(1)
	}
	return any, err
}

// sleep waits for the queue's event, or until the caller must check its state again.
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
		// The channel's read deadline interrupts the reader.
		stop := context.AfterFunc(ctx, d.interrupt)
		defer stop()
	}
	for {
		select {
		case <-c.wake: // another reader passed our event before our turn
			return nil
		default:
		}
		// Check the context only now: an interruption that was meant for us may have reached the
		// previous reader.
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

// spinning counts the goroutines of this program in Spin. Each occupies a P of the Go runtime that other
// goroutines may need to make progress, so at most half of the Ps spin.
var (
	spinning atomic.Int32
	spinners = int32(max(1, runtime.GOMAXPROCS(0)/2))
)

// Spin polls for up to most and yields to other goroutines in between. Use it when a completion is
// expected within microseconds, because sleeping and waking takes longer. It returns at once if too many
// goroutines of this program spin.
func (c *CQ) Spin(most time.Duration) (bool, error) {
	defer spinning.Add(-1)
	if spinning.Add(1) > spinners {
		return c.waiting()
	}
	start := time.Now()
	for {
		for range yieldEvery {
			if r := c.look.Load(); r != nil && r.empty() {
				if err := c.emptyPoll(1); err != nil {
					return false, err
				}
				continue
			}
			any, err := c.waiting()
			if any || err != nil {
				return any, err
			}
			if err := c.emptyPoll(1); err != nil {
				return false, err
			}
		}
		if time.Since(start) >= most {
			return false, nil
		}
	}
}

// Next polls, and waits while the queue is empty.
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

// Arm requests a value in Wake with the next completion, or with the next one that the sender marked
// Solicited. Completions before Arm give no value: poll once more before waiting. Arm and Wake are for
// programs that select on several channels; Wait needs neither.
func (c *CQ) Arm(solicited bool) error { return fault("wait for a completion", c.arm(solicited)) }

// Wake returns a channel that receives a value after Arm, when there may be a completion to poll.
func (c *CQ) Wake() <-chan struct{} {
	c.d.reading.Do(func() { go c.d.readChannel() })
	return c.wake
}

func (c *CQ) arm(solicited bool) error {
	if c.d.backend.Arm(c.handle, solicited) {
		return nil
	}
	req := abi.ReqNotifyCQ{CQHandle: c.handle}
	if solicited {
		req.SolicitedOnly = 1
	}
	_, err := exec(c.d, abi.CmdReqNotifyCQ, &req, nil, answer{})
	return err
}
