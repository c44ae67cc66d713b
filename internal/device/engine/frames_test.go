package engine

import (
	"encoding/binary"
	"net/netip"
	"sync"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/net/overlay"
)

// catcher is a switch that counts the frames of each sender and notes disorder.
type catcher struct {
	mu       sync.Mutex
	next     [4]uint32
	disorder bool
}

func (c *catcher) Wants(uint32, netip.Addr) bool { return false }

func (c *catcher) Receive(_ uint32, _ *overlay.Host, frame []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sender, number := frame[overlay.EthernetSize+20], binary.BigEndian.Uint32(frame[overlay.EthernetSize+21:])
	c.disorder = c.disorder || number+1 < c.next[sender] // the last one comes several times
	c.next[sender] = number + 1
}

// reached reports whether the last frame of every sender has come.
func (c *catcher) reached(n uint32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, next := range c.next {
		if next < n {
			return false
		}
	}
	return true
}

// TestFrames: goroutines send frames to another host, also while the loop sleeps. Each sender's frames
// arrive in order, and its last one arrives.
func TestFrames(t *testing.T) {
	engines, _, maps := overlayHosts(t)
	got := &catcher{}
	if err := engines[1].Do(func() { engines[1].first.net.overlay.SetFrames(got) }); err != nil {
		t.Fatal(err)
	}
	to, from := overlay.MACOf(address(2)), overlay.MACOf(address(1))
	head := append(append(append([]byte{}, to[:]...), from[:]...), 0x08, 0x00)
	ip := make([]byte, 20)
	ip[0], ip[9] = 0x45, 6
	const frames = 200
	send := func(sender int, number uint32) {
		f := append(append([]byte{}, head...), ip...)
		f = append(f, byte(sender))
		f = binary.BigEndian.AppendUint32(f, number)
		engines[0].SendFrame(5, maps[0].Hosts(5)[0], append(f, make([]byte, 60)...))
	}
	var wg sync.WaitGroup
	for sender := range got.next {
		wg.Go(func() {
			for i := range uint32(frames) {
				send(sender, i)
				if i%50 == 0 {
					time.Sleep(time.Millisecond) // the loop falls asleep
				}
			}
		})
	}
	wg.Wait()
	// A frame may be lost, as on a wire: the last one is sent until it arrives.
	for deadline := time.Now().Add(time.Minute); !got.reached(frames); {
		if time.Now().After(deadline) {
			t.Fatalf("frames up to %v arrived, want %d of each sender", got.next, frames)
		}
		for sender := range got.next {
			send(sender, frames)
		}
		time.Sleep(time.Millisecond)
	}
	if got.mu.Lock(); got.disorder {
		t.Error("frames arrived in another order")
	}
	got.mu.Unlock()
}

// TestFramesFull: while the loop takes no frames, the queue stays bounded and the rest is counted as dropped.
func TestFramesFull(t *testing.T) {
	engines, _, maps := overlayHosts(t)
	e := engines[0]
	frame := make([]byte, 1000)
	if err := e.Do(func() { // the loop is here, and takes none
		for range 2 * framesMost / len(frame) {
			e.SendFrame(5, maps[0].Hosts(5)[0], frame)
		}
		if n, lost := len(e.first.frames.queue.data), e.first.frames.lost.Load(); n > framesMost || lost == 0 {
			t.Errorf("%d bytes wait, at most %d may; %d frames lost", n, framesMost, lost)
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// TestFramesAllocate: a frame allocates nothing once the queues have grown.
func TestFramesAllocate(t *testing.T) {
	engines, _, maps := overlayHosts(t)
	e, frame, host := engines[0], make([]byte, 1000), maps[0].Hosts(5)[0]
	if err := e.Do(func() {
		pass := func() {
			for range 16 {
				e.SendFrame(5, host, frame)
			}
			e.first.frames.send(e.first.net.overlay)
			e.first.net.flush(e.first.clock.now)
		}
		pass()
		pass()
		if n := testing.AllocsPerRun(100, pass); n != 0 && !raceEnabled {
			t.Errorf("%v allocations", n)
		}
	}); err != nil {
		t.Fatal(err)
	}
}
