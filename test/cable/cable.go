package cable

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/net/pcap"
)

// maxFrame is the largest frame that a cable carries.
const maxFrame = 1 << 16

// hold is how long a reordered frame waits so that others overtake it.
const hold = 3 * time.Millisecond

// Faults are the shares (0…1) of RoCEv2 packets that the cable harms, in each direction.
type Faults struct {
	Drop, Duplicate, Reorder, Corrupt float64
}

// Count counts the RoCEv2 packets of a cable by what happened to them, in both directions together.
type Count struct {
	Carried, Dropped, Duplicated, Reordered, Corrupted int
}

// Harmed returns how many packets were harmed.
func (c Count) Harmed() int { return c.Dropped + c.Duplicated + c.Reordered + c.Corrupted }

// Cable carries frames between its ends until its test is over.
type Cable struct {
	mu          sync.Mutex // guards all below
	faults      Faults
	delay       time.Duration
	rng         *rand.Rand
	count       Count
	pcap        *pcap.Writer
	bottlenecks map[End]*bottleneck
}

// Connect starts carrying frames between ends; a frame from one goes to all others. The seed makes the choice of harmed
// packets repeatable, as far as the traffic is.
func Connect(t testing.TB, seed uint64, ends ...End) *Cable {
	t.Helper()
	c := &Cable{rng: rand.New(rand.NewPCG(seed, 0)), bottlenecks: map[End]*bottleneck{}}
	var done sync.WaitGroup
	for i, from := range ends {
		to := slices.Concat(ends[:i], ends[i+1:])
		done.Go(func() { c.carry(from, to) })
	}
	t.Cleanup(func() {
		for _, e := range ends {
			e.Close()
		}
		done.Wait()
	})
	return c
}

// SetFaults changes the faults from now on.
func (c *Cable) SetFaults(f Faults) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = f
}

// SetDelay delays every frame by d from now on, in both directions.
func (c *Cable) SetDelay(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.delay = d
}

// Count so far.
func (c *Cable) Count() Count {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count
}

// Capture writes every frame that the cable delivers to a file, until stop is called.
func (c *Cable) Capture(t testing.TB, path string) (stop func()) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w, err := pcap.NewWriter(f, pcap.Ethernet)
	if err != nil {
		t.Fatal(err)
	}
	set := func(w *pcap.Writer) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.pcap = w
	}
	set(w)
	return func() {
		set(nil)
		f.Close()
	}
}

// Keep captures the cable's frames during a test, if VRDMA_TEST_CAPTURES names a directory.
func (c *Cable) Keep(t testing.TB) {
	t.Helper()
	if dir := os.Getenv("VRDMA_TEST_CAPTURES"); dir != "" {
		t.Cleanup(c.Capture(t, filepath.Join(dir, strings.ReplaceAll(t.Name(), "/", "_")+".pcap")))
	}
}

// held is a frame that is not due yet: the cable has a delay, or others must overtake it.
type held struct {
	frame []byte
	until time.Time
}

// carry moves frames in one direction until an end is closed.
func (c *Cable) carry(from End, to []End) {
	var late []held
	buf := make([]byte, maxFrame)
	for {
		deadline := time.Time{}
		if len(late) > 0 {
			deadline = late[0].until
		}
		if from.SetReadDeadline(deadline) != nil {
			return
		}
		n, err := from.Read(buf)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
		case err != nil:
			return
		default:
			late = c.pass(buf[:n], to, late)
		}
		now := time.Now()
		for len(late) > 0 && !late[0].until.After(now) {
			c.deliver(late[0].frame, to)
			late = late[1:]
		}
	}
}

// pass delivers one frame, unless a fault changes that.
func (c *Cable) pass(frame []byte, to []End, late []held) []held {
	c.mu.Lock()
	wait := c.delay
	c.mu.Unlock()
	if isRoCE(frame) {
		switch fate := c.fate(); fate {
		case dropped:
			return late
		case duplicated:
			late = c.after(wait, frame, to, late)
		case corrupted:
			c.mu.Lock()
			at := len(frame) - 1 - c.rng.IntN(12) // in the last bytes, ICRC or payload, never an address
			c.mu.Unlock()
			frame[at] ^= 0x20
			clearChecksum(frame)
		case reordered:
			wait += hold
		}
	}
	return c.after(wait, frame, to, late)
}

// after delivers a frame now, or inserts it into the frames that are not due yet.
func (c *Cable) after(wait time.Duration, frame []byte, to []End, late []held) []held {
	if wait == 0 {
		c.deliver(frame, to)
		return late
	}
	h := held{slices.Clone(frame), time.Now().Add(wait)}
	i := len(late)
	for i > 0 && late[i-1].until.After(h.until) {
		i--
	}
	return slices.Insert(late, i, h)
}

// deliver writes a frame. A full end loses it, like a cable.
func (c *Cable) deliver(frame []byte, to []End) {
	for _, end := range to {
		if q := c.record(frame, end); q != nil {
			q.put(frame)
		} else {
			end.Write(frame)
		}
	}
}

// record writes a frame to the capture, if there is one, and returns the bottleneck in front of its end.
func (c *Cable) record(frame []byte, end End) *bottleneck {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pcap != nil {
		c.pcap.Write(time.Now(), frame)
	}
	return c.bottlenecks[end]
}

// The possible fates of a packet.
type fate int

const (
	carried fate = iota
	dropped
	duplicated
	reordered
	corrupted
)

// fate chooses the next packet's fate and counts it.
func (c *Cable) fate() fate {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count.Carried++
	x := c.rng.Float64()
	for _, f := range []struct {
		share float64
		fate  fate
		count *int
	}{
		{c.faults.Drop, dropped, &c.count.Dropped},
		{c.faults.Duplicate, duplicated, &c.count.Duplicated},
		{c.faults.Reorder, reordered, &c.count.Reordered},
		{c.faults.Corrupt, corrupted, &c.count.Corrupted},
	} {
		if x < f.share {
			*f.count++
			return f.fate
		}
		x -= f.share
	}
	return carried
}
