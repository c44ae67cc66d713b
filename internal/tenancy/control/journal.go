package control

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"vrdma.dev/vrdma/internal/events"
	"vrdma.dev/vrdma/internal/printable"
	"vrdma.dev/vrdma/internal/ratelimit"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

const (
	// keptEvents is how many events are kept in memory.
	keptEvents = 4096
	// Of a verb and an object this many are taken a second, after a pause this many at once.
	eventRate  = 10
	eventBurst = 20
	// mostKinds bounds how many verbs and objects are counted apart.
	mostKinds = 8192
	// mostLogged is how many of the events that come at once are in the log.
	mostLogged = 100
)

// A Journal keeps the latest events. It implements events.Sink.
type Journal struct {
	feed  feed[events.Event]
	kinds ratelimit.Buckets[eventKind]

	mu    sync.Mutex // held while events are numbered; before feed.mu
	audit *AuditLog  // nil: there is none
}

// Audit makes the journal write changes of people to an audit log. It is called before the first event.
func (j *Journal) Audit(a *AuditLog) { j.audit = a }

// An eventKind is what is rate-limited by itself.
type eventKind struct {
	verb   events.Verb
	object tenant.Key
}

// NewJournal makes an empty journal. Open writes its events to the log.
func NewJournal() *Journal {
	return &Journal{
		feed:  feed[events.Event]{most: keptEvents},
		kinds: ratelimit.Buckets[eventKind]{Rate: eventRate, Burst: eventBurst, Most: mostKinds},
	}
}

// Record implements events.Sink. It drops an event if there are too many of its kind. It takes three locks that are
// held for a short time only.
func (j *Journal) Record(e events.Event) { j.recordAs(eventKind{e.Verb, e.Object}, e) }

// recordAs is Record for an event that counts as one of a kind.
func (j *Journal) recordAs(kind eventKind, e events.Event) {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	missed, ok := j.kinds.Take(kind, e.Time)
	if !ok {
		return
	}
	e.Missed += missed
	j.number(e)
}

// changes records all events of one change. It is for changes that an authorised caller has made.
func (j *Journal) changes(recorded []events.Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.number(recorded...)
}

// number numbers events and adds them. mu is held.
func (j *Journal) number(recorded ...events.Event) {
	j.feed.mu.Lock()
	defer j.feed.mu.Unlock()
	next := j.feed.first + uint64(len(j.feed.items))
	for i := range recorded {
		e := &recorded[i]
		e.Sequence = next + uint64(i) + 1 // the first event has number 1
		// Programs, images and other hosts choose parts of these texts.
		e.Reason, e.Peer, e.By.Program = line(e.Reason), line(e.Peer), line(e.By.Program)
	}
	j.feed.addLocked(recorded)
	j.audit.record(recorded)
}

// line returns a text as one line that is safe to print.
func line(s string) string { return printable.Text(strings.ReplaceAll(s, "\n", "; ")) }

// write copies events to a log until ctx ends. Record does not wait for it.
func (j *Journal) write(ctx context.Context, log *slog.Logger) {
	number := uint64(0)
	for {
		recorded, next, missed, wait := j.feed.after(number, keptEvents)
		number = next
		for i, e := range recorded {
			if i == mostLogged {
				log.Info("more events: see vrdma events", "events", len(recorded)-i)
				break
			}
			logEvent(log, e)
		}
		if missed > 0 {
			log.Info("events that came too fast for the log", "events", missed)
		}
		if wait == nil {
			continue
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return
		}
	}
}

func logEvent(log *slog.Logger, e events.Event) {
	args := []any{"verb", string(e.Verb)}
	if e.Object != (tenant.Key{}) {
		args = append(args, "object", e.Object.String())
	}
	for _, field := range []struct{ name, value string }{{"peer", e.Peer}, {"reason", e.Reason}} {
		if field.value != "" {
			args = append(args, field.name, field.value)
		}
	}
	if e.By != (events.Actor{}) {
		args = append(args, "uid", e.By.UID, "pid", e.By.Pid, "program", e.By.Program)
	}
	if e.Missed > 0 {
		args = append(args, "missed", e.Missed)
	}
	level := slog.LevelInfo
	if e.Verb.Warns() {
		level = slog.LevelWarn
	}
	log.Log(context.Background(), level, "event", args...)
}
