package vm

import (
	"testing"

	"vrdma.dev/vrdma/internal/client/gate"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/client/vm/vmproto"
)

// TestWaiting: the frames that an agent queues for sessions have one bound for all programs of a guest. Sessions
// above the bound end, and in the end nothing is queued.
func TestWaiting(t *testing.T) {
	full := make([]vmproto.Run, vmproto.MaxRuns)
	for name, more := range map[string]func(*conversation){
		"messages": func(c *conversation) { c.take(make([]byte, protocol.MaxMessage)) },
		"queues":   func(c *conversation) { c.takePages(vmproto.Arena, 0, full) },
		"growth": func(c *conversation) {
			c.mu.Lock()
			c.wants = true
			c.mu.Unlock()
			c.takePages(vmproto.Grown, 0, full)
		},
		"events": func(c *conversation) {
			c.mu.Lock()
			c.asked = true
			c.mu.Unlock()
			c.takeReturned(make([]vmproto.Returning, vmproto.MaxReturned))
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := &guest{link: &link{closed: true}, gate: new(gate.Gate), conns: make(map[uint32]*conversation), ram: newRAM(newTestRAM(t))}
			left := 0
			for id := range uint32(1000) {
				c, err := newConversation(m, id)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Conn.Close()
				m.conns[id] = c
				for range 2 {
					more(c)
				}
				if m.waiting.Load() > mostWaiting {
					t.Fatalf("%d bytes wait", m.waiting.Load())
				}
				select {
				case <-c.leaving:
					left++
				default:
				}
				if left == 3 {
					break
				}
			}
			if left != 3 || m.waiting.Load() < mostWaiting/2 {
				t.Errorf("%d of %d conversations have left, and %d bytes wait", left, len(m.conns), m.waiting.Load())
			}
			for _, c := range m.conns {
				c.leave()
				c.Over()
				c.relay()
			}
			if n := m.waiting.Load(); n != 0 {
				t.Errorf("%d bytes wait in the end", n)
			}
		})
	}
}

// TestUnasked: unrequested frames are not kept.
func TestUnasked(t *testing.T) {
	c, err := newConversation(&guest{link: &link{closed: true}, gate: new(gate.Gate)}, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Conn.Close()
	defer c.leave()
	for range 2 {
		c.takePages(vmproto.Grown, 0, make([]vmproto.Run, vmproto.MaxRuns))
		c.takePages(vmproto.Grown, 0, nil)
		c.takeReturned(make([]vmproto.Returning, vmproto.MaxReturned))
		c.takeReturned(nil)
	}
	if len(c.growing)+len(c.grown)+len(c.returning) != 0 || c.m.waiting.Load() != 0 {
		t.Errorf("%d pieces and %d events are kept, %d bytes", len(c.growing), len(c.returning), c.m.waiting.Load())
	}
}
