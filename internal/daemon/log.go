package daemon

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"

	"vrdma.dev/vrdma/internal/exit"
	"vrdma.dev/vrdma/internal/ratelimit"
)

// logger returns the daemon's log, which w gets, and its level. Under journald each line begins with its priority.
func (o *Options) logger(w *os.File) (*slog.Logger, *slog.LevelVar, error) {
	level := &slog.LevelVar{}
	if err := level.UnmarshalText([]byte(o.LogLevel)); err != nil {
		return nil, nil, exit.Usage("--log-level %s: choose debug, info, warn or error", o.LogLevel)
	}
	if o.LogFormat != "text" && o.LogFormat != "json" {
		return nil, nil, exit.Usage("--log-format %s: choose text or json", o.LogFormat)
	}
	var h slog.Handler
	if journal(w, os.Getenv("JOURNAL_STREAM")) {
		h = newPriorities(w, o.LogFormat, level)
	} else {
		h = formatHandler(w, o.LogFormat, &slog.HandlerOptions{Level: level})
	}
	return slog.New(newRepeats(h)), level, nil
}

func formatHandler(w io.Writer, format string, options *slog.HandlerOptions) slog.Handler {
	if format == "json" {
		return slog.NewJSONHandler(w, options)
	}
	return slog.NewTextHandler(w, options)
}

// journal reports whether f is the stream to journald that variable names: DEVICE:INODE, see systemd.exec(5).
func journal(f *os.File, variable string) bool {
	var device, inode uint64
	if n, err := fmt.Sscanf(variable, "%d:%d", &device, &inode); err != nil || n != 2 {
		return false
	}
	info, err := f.Stat()
	if err != nil {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Dev == device && st.Ino == inode
}

// priorities is a handler that begins each line with the priority of sd-daemon(3), which journald removes. There is a handler for each
// priority, because a slog.Handler does not tell its writer the level.
type priorities struct{ of [4]slog.Handler }

// The priorities of syslog for slog's levels.
var syslogPriorities = [4]string{"<7>", "<6>", "<4>", "<3>"}

func newPriorities(w io.Writer, format string, level slog.Leveler) *priorities {
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if format == "text" && len(groups) == 0 && a.Key == slog.TimeKey {
			return slog.Attr{} // journald has it
		}
		return a
	}}
	p, mu := &priorities{}, &sync.Mutex{}
	for i, prefix := range syslogPriorities {
		p.of[i] = formatHandler(&prefixed{mu: mu, w: w, prefix: prefix}, format, options)
	}
	return p
}

func (p *priorities) at(l slog.Level) slog.Handler {
	switch {
	case l < slog.LevelInfo:
		return p.of[0]
	case l < slog.LevelWarn:
		return p.of[1]
	case l < slog.LevelError:
		return p.of[2]
	}
	return p.of[3]
}

func (p *priorities) Enabled(ctx context.Context, l slog.Level) bool { return p.of[0].Enabled(ctx, l) }

func (p *priorities) Handle(ctx context.Context, r slog.Record) error {
	return p.at(r.Level).Handle(ctx, r)
}

func (p *priorities) with(f func(slog.Handler) slog.Handler) *priorities {
	out := &priorities{}
	for i, h := range p.of {
		out.of[i] = f(h)
	}
	return out
}

func (p *priorities) WithAttrs(a []slog.Attr) slog.Handler {
	return p.with(func(h slog.Handler) slog.Handler { return h.WithAttrs(a) })
}

func (p *priorities) WithGroup(name string) slog.Handler {
	return p.with(func(h slog.Handler) slog.Handler { return h.WithGroup(name) })
}

// prefixed writes a prefix before each write. A slog.Handler writes one line at a time.
type prefixed struct {
	mu     *sync.Mutex
	w      io.Writer
	prefix string
}

func (p *prefixed) Write(line []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := p.w.Write(append([]byte(p.prefix), line...)); err != nil {
		return 0, err
	}
	return len(line), nil
}

// The log takes this many lines of one message at once, and then this many a second. Lines that differ only in values are one
// message, unless they are about different objects.
const (
	repeatBurst = 20
	repeatRate  = 0.2
	// mostMessages bounds how many messages are counted apart.
	mostMessages = 1024
	// repeatTime is when the log says how many lines it left out.
	repeatTime = 10 * time.Second
)

// repeats is a handler that leaves out lines that come too often, and then says how many.
type repeats struct {
	slog.Handler
	of *repeated
}

// repeated is common to the handlers of one log.
type repeated struct {
	lines ratelimit.Buckets[message]

	mu   sync.Mutex
	left map[message]int // guarded by mu; lines left out since the timer was set
}

// A message is what is counted apart.
type message struct {
	level        slog.Level
	text         string
	verb, object string // of an event
}

func newRepeats(h slog.Handler) *repeats {
	return &repeats{h, &repeated{
		lines: ratelimit.Buckets[message]{Rate: repeatRate, Burst: repeatBurst, Most: mostMessages},
		left:  make(map[message]int),
	}}
}

func (h *repeats) Handle(ctx context.Context, r slog.Record) error {
	m := message{level: r.Level, text: r.Message}
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "verb":
			m.verb = a.Value.String()
		case "object", "nic":
			m.object = a.Value.String()
		}
		return true
	})
	if _, ok := h.of.lines.Take(m, r.Time); ok || r.Level >= slog.LevelError+4 {
		return h.Handler.Handle(ctx, r)
	}
	h.of.mu.Lock()
	defer h.of.mu.Unlock()
	if h.of.left[m]++; h.of.left[m] == 1 {
		time.AfterFunc(repeatTime, func() { h.summarise(m) })
	}
	return nil
}

// summarise says how many lines of a message were left out.
func (h *repeats) summarise(m message) {
	h.of.mu.Lock()
	n := h.of.left[m]
	delete(h.of.left, m)
	h.of.mu.Unlock()
	r := slog.NewRecord(time.Now(), m.level, m.text, 0)
	if m.verb != "" {
		r.AddAttrs(slog.String("verb", m.verb))
	}
	if m.object != "" {
		r.AddAttrs(slog.String("object", m.object))
	}
	r.AddAttrs(slog.Int("repeated", n))
	h.Handler.Handle(context.Background(), r)
}

func (h *repeats) WithAttrs(a []slog.Attr) slog.Handler {
	return &repeats{h.Handler.WithAttrs(a), h.of}
}

func (h *repeats) WithGroup(name string) slog.Handler {
	return &repeats{h.Handler.WithGroup(name), h.of}
}
