package provision

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"vrdma.dev/vrdma/internal/events"
)

type recorder struct{ list []events.Event }

func (r *recorder) Record(e events.Event) { r.list = append(r.list, e) }

// TestCapSpell: an hour at the cap is two events, and the next spell two more.
func TestCapSpell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		c := &capSpell{sink: r, throttled: func() time.Duration { return 1800 * time.Second }}
		for range 3600 {
			c.capped("bytes out")
			time.Sleep(time.Second)
		}
		time.Sleep(2 * spellEnd)
		synctest.Wait()
		if len(r.list) != 2 || r.list[0].Verb != events.Capped || r.list[1].Verb != events.Uncapped {
			t.Fatalf("got %+v", r.list)
		}
		if got := r.list[1].Reason; !strings.Contains(got, "bytes out, for 59m59s; delayed for 30m0s in all") {
			t.Errorf("got %q", got)
		}
		c.capped("bytes in")
		time.Sleep(2 * spellEnd)
		synctest.Wait()
		if len(r.list) != 4 || r.list[2].Reason != "bytes in" {
			t.Errorf("got %+v", r.list)
		}
	})
}
