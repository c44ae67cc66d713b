package filecopy

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// Progress counts copied bytes. A nil Progress counts nothing.
type Progress struct {
	total atomic.Uint64 // bytes of all known files
	past  atomic.Uint64 // bytes that were moved, or need not be
	wire  atomic.Uint64 // moved bytes
	files atomic.Uint64
}

// again resets the work to do, for another attempt.
func (p *Progress) again() {
	if p != nil {
		p.total.Store(0)
		p.past.Store(0)
		p.files.Store(0)
	}
}

// found counts a file; here: it need not be moved.
func (p *Progress) found(size uint64, here bool) {
	if p == nil {
		return
	}
	p.files.Add(1)
	p.total.Add(size)
	if here {
		p.past.Add(size)
	}
}

func (p *Progress) moved(n int) {
	if p != nil {
		p.past.Add(uint64(n))
		p.wire.Add(uint64(n))
	}
}

func (p *Progress) kept(n uint64) {
	if p != nil {
		p.past.Add(n)
	}
}

// Moved returns how many bytes were sent or received.
func (p *Progress) Moved() uint64 { return p.wire.Load() }

// Files returns how many files there were.
func (p *Progress) Files() uint64 { return p.files.Load() }

// Show draws a line on a terminal several times a second, until stop.
func (p *Progress) Show(w io.Writer) (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		t := time.NewTicker(200 * time.Millisecond)
		defer t.Stop()
		b := bar{start: time.Now()}
		for {
			select {
			case now := <-t.C:
				fmt.Fprint(w, "\r\x1b[K", b.line(now, p.past.Load(), p.total.Load(), p.wire.Load()))
			case <-end:
				fmt.Fprint(w, "\r\x1b[K", b.line(time.Now(), p.past.Load(), p.total.Load(), p.wire.Load()), "\n")
				return
			}
		}
	}()
	return sync.OnceFunc(func() { close(end); <-ended })
}

// A bar draws the line. The rate is that of the last seconds.
type bar struct {
	start time.Time
	marks [16]mark // the last ones
	next  int
}

type mark struct {
	at   time.Time
	wire uint64
}

// line returns the text for the terminal.
func (b *bar) line(now time.Time, past, total, wire uint64) string {
	old := b.marks[b.next%len(b.marks)]
	if old.at.IsZero() {
		old = mark{at: b.start}
	}
	b.marks[b.next%len(b.marks)] = mark{now, wire}
	b.next++
	const width = 24
	full := width
	if total > 0 {
		full = int(min(past, total) * width / total)
	}
	rate := 0.0
	if d := now.Sub(old.at).Seconds(); d > 0 {
		rate = float64(wire-min(wire, old.wire)) / d
	}
	left := "-:--"
	if rate > 0 && past <= total {
		left = clock(time.Duration(float64(total-past) / rate * float64(time.Second)))
	}
	percent := 100
	if total > 0 {
		percent = int(min(past, total) * 100 / total)
	}
	return fmt.Sprintf("[%-*.*s] %3d %%  %s of %s  %s/s  %s left", width, full, "########################", percent, Bytes(float64(past)), Bytes(float64(total)), Bytes(rate), left)
}

// clock formats a duration as minutes and seconds, or hours.
func clock(d time.Duration) string {
	s := int(min(d, 1000*time.Hour).Round(time.Second).Seconds())
	if s >= 3600 {
		return fmt.Sprintf("%d:%02d:%02d", s/3600, s/60%60, s%60)
	}
	return fmt.Sprintf("%d:%02d", s/60, s%60)
}

// Bytes formats a number of bytes.
func Bytes(n float64) string {
	unit := 0
	for n >= 1000 && unit < 4 {
		n /= 1000
		unit++
	}
	return fmt.Sprintf("%.3g %s", n, [...]string{"B", "kB", "MB", "GB", "TB"}[unit])
}
