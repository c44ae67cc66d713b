package control

import (
	"fmt"
	"time"
)

// A store on other hosts may be away. What it said last holds then, for ever: programs go on, and
// connect. Nothing can be changed, and rules that others change do not arrive: a policy may say for
// how long that will do (maxStaleness).

// A Remote is a store on other hosts.
type Remote interface {
	// Heard is when the store has last answered, or said that it is there.
	Heard() time.Time
}

// awayAfter is how long a store may be silent until it is away. It is asked more often.
const awayAfter = 10 * time.Second

// Age is how old what is known of the store may be; 0 for one of our own.
func (p *Plane) Age() time.Duration {
	if r, is := p.cfg.Store.(Remote); is {
		return time.Since(r.Heard())
	}
	return 0
}

// away says that the store is away, and since when; "" if it is not.
func (p *Plane) away() string {
	if age := p.Age(); age > awayAfter {
		return fmt.Sprintf("the store has not answered for %v", age.Round(time.Second))
	}
	return ""
}

// An Ager is a Rack that is told how old the rules may be.
type Ager interface{ Age(time.Duration) }

// age tells the rack how old the rules may be, and everybody when the store goes away and comes
// back.
func (p *Plane) age() {
	if ager, is := p.cfg.Rack.(Ager); is {
		ager.Age(p.Age())
	}
	why := p.away()
	if gone := why != ""; p.gone.Swap(gone) != gone {
		e := Event{Verb: EventFailed, Reason: why + ": what it said last holds, and nothing can be changed"}
		if !gone {
			e = Event{Verb: EventReady, Reason: "the store answers again"}
		}
		p.journal.record(e)
	}
}
