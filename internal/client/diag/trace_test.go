package diag

import (
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/protocol"
)

// TestTraceSlow shows that a tool that does not read loses records, not programs
// time.
func TestTraceSlow(t *testing.T) {
	var h Hub
	p := &credentials.Caller{UID: 1, Label: "l"}
	if h.Wants(p) {
		t.Error("somebody listens to an empty hub")
	}
	sub := h.Subscribe("l", &credentials.Caller{UID: 1}, false)
	if other := (&credentials.Caller{UID: 2, Label: "l"}); h.Wants(other) {
		t.Error("a user sees another user's programs")
	}
	for range traceQueue + 10 {
		h.Publish(p, protocol.TraceRecord{})
	}
	for range traceQueue {
		<-sub.Records
	}
	h.Publish(p, protocol.TraceRecord{})
	if r := <-sub.Records; r.Lost != 10 {
		t.Errorf("lost %d, want 10", r.Lost)
	}
	h.Unsubscribe(sub)
	if h.Wants(p) {
		t.Error("somebody listens after unsubscribe")
	}
}

// TestWantsNeverWaits: the loop calls Wants while others publish, and never waits.
func TestWantsNeverWaits(t *testing.T) {
	var h Hub
	p := &credentials.Caller{UID: 1}
	sub := h.Subscribe("", &credentials.Caller{UID: 1}, false)
	h.mu.Lock()
	defer h.Unsubscribe(sub)
	defer h.mu.Unlock()
	answer := make(chan bool, 1)
	go func() { answer <- h.Wants(p) }()
	select {
	case got := <-answer:
		if !got {
			t.Error("nobody listens")
		}
	case <-time.After(time.Minute):
		t.Error("no answer while somebody publishes")
	}
}
