package engine

import (
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"
)

// lines collects what is logged.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), what)
}

// TestTooLong: packets that are too long for the path to a peer give one log line each ten minutes, with a limit for
// all peers together.
func TestTooLong(t *testing.T) {
	var log lines
	e := newEngine(t)
	e.first.opts.Log = slog.New(slog.NewTextHandler(&log, nil))
	peer := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}) }
	const many = tooLongMost + 50
	e.Do(func() {
		for range 3 {
			for i := range many {
				e.first.net.noteTooLong(testGID.Addr(), peer(i), 1600)
			}
		}
		e.first.net.noteTooLong(testGID.Addr(), peer(0), 1500)
	})
	for start := time.Now(); log.count("too long") < tooLongMost && time.Since(start) < time.Minute; {
		time.Sleep(time.Millisecond)
	}
	if n := log.count("too long"); n != tooLongMost {
		t.Errorf("%d lines, want %d:\n%.2000s", n, tooLongMost, log.text.String())
	}
	if log.count("peer=10.9.0.7 bytes=1600 port_mtu=4096 interface=lo") != 1 {
		t.Errorf("no line that says what is wrong:\n%.2000s", log.text.String())
	}
	e.Do(func() {
		if a, b := e.first.net.shortestTooLong(peer(0)), e.first.net.shortestTooLong(peer(many)); a != 1500 || b != 0 {
			t.Errorf("shortest packets %d and %d, want 1500 and none", a, b)
		}
	})
}
