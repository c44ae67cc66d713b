package rdmacm

import (
	"vrdma.dev/vrdma/internal/ib"
)

// A program may close its listener and listen on the same port again, as perftest -R does between its two connections. Its peer may send
// a request in between. Linux rejects such a request at once, which crashes perftest's client. Here the request is dropped if the listener
// was just closed and its program is alive: the peer repeats it, after half a second at first.

const (
	// renewal is how long requests for a port without a listener are dropped instead of rejected. The second repetition of a request,
	// after 1.5 s, is always answered.
	renewal = ib.Time(1.4e9)
	// maxVacant limits the number of such ports.
	maxVacant = 1024
)

// A vacancy is a port whose listener was just closed.
type vacancy struct {
	of *Client
	at ib.Time
}

// vacate records that a program closes its listener.
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

// renewing reports whether a program may be about to listen at a port again.
func (a *CMA) renewing(k portKey) bool {
	v, ok := a.vacant[k]
	return ok && a.now()-v.at < renewal
}

// leave removes the ports of a program that has ended.
func (a *CMA) leave(c *Client) {
	for k, v := range a.vacant {
		if v.of == c {
			delete(a.vacant, k)
		}
	}
}
