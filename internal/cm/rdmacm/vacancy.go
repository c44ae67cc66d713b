package rdmacm

import (
	"vrdma.dev/vrdma/internal/ib"
)

// A program that listens, stops, and listens on the same port again, as perftest -R does
// between its two connections, has no listener for a moment. If it is late, for want of an
// acknowledgement that was lost, its peer calls in that moment. Linux refuses such a call at
// once, and perftest's client crashes of it. Here the request is dropped if the listener has
// just gone and its program lives: the peer repeats it, half a second later at first.

const (
	// renewal is how long a port without a listener is spared refusals. The second
	// repetition of a request, after 1.5 s, is answered in any case.
	renewal = ib.Time(1.4e9)
	// maxVacant bounds how many such ports are remembered.
	maxVacant = 1024
)

// A vacancy is a port whose listener went away.
type vacancy struct {
	of *Client
	at ib.Time
}

// vacate notes that a program's listener goes.
func (a *CMA) vacate(k portKey, of *Client) {
	now := a.now()
	if len(a.vacant) >= maxVacant {
		for k, v := range a.vacant {
			if now-v.at >= renewal {
				delete(a.vacant, k)
			}
		}
		if len(a.vacant) >= maxVacant {
			return
		}
	}
	a.vacant[k] = vacancy{of, now}
}

// renewing reports whether somebody may be about to listen at a port again.
func (a *CMA) renewing(k portKey) bool {
	v, ok := a.vacant[k]
	return ok && a.now()-v.at < renewal
}

// leave forgets the ports that a program listened at: it is gone for good.
func (a *CMA) leave(c *Client) {
	for k, v := range a.vacant {
		if v.of == c {
			delete(a.vacant, k)
		}
	}
}
