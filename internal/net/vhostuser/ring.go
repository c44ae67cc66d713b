package vhostuser

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
)

// maxNum is the maximum number of descriptors of a ring (virtio 1.1, section 2.6).
const maxNum = 1 << 15

const (
	descSize = 16

	descNext     = 1
	descWrite    = 2 // the device writes it
	descIndirect = 4 // the buffer is a table of descriptors

	noInterrupt = 1 // in the flags of the available ring
	noNotify    = 1 // in the flags of the used ring
)

// ErrBroken means that the driver violated the protocol of a ring. The ring stays stopped until the driver starts it again.
var ErrBroken = errors.New("the driver broke the rules of virtqueues")

// A Ring is a virtqueue.
//
//	           SET_VRING_KICK            SET_VRING_ENABLE 1
//	stopped ─────────────────▶ started ─────────────────▶ enabled: Begin is true
//	   ▲  GET_VRING_BASE, reset   │  ▲ SET_VRING_ENABLE 0     │
//	   └──────────────────────────┘  └────────────────────────┘
//	   ▲                      a broken rule: Begin is false until it is stopped
//	   └── (and when the front end has gone)
type Ring struct {
	Index int
	conn  *Conn
	call  atomic.Pointer[os.File] // eventfd; nil: no interrupts
	calls atomic.Bool             // an interrupt is pending
	kicks atomic.Bool             // a kick is pending

	mu sync.Mutex // guards everything below

	num                      int
	descAt, availAt, usedAt  uint64 // addresses in the front end
	started, enabled, broken bool
	events                   bool // RingEventIdx
	memory                   *Memory
	desc, avail, used        []byte    // nil: not all are mapped
	last                     uint16    // next index in the available ring
	next                     uint16    // next index in the used ring
	told                     uint16    // value of next at the last Publish
	base                     uint16    // from SET_VRING_BASE
	mark                     [2]uint16 // last and next at Mark
	listener                 *listener // set while the ring is started
	quiet                    bool      // the driver was asked not to kick
	log                      []byte    // of written pages (dirtylog.go); nil: nothing is logged
	usedLogged               bool      // changes of the used ring are logged, too
	usedLogAt                uint64    // guest-physical address of the used ring, for the log
}

// A Chain is a unit of buffers that the driver made available: first those that the device reads, then those that it writes. They are
// valid until End.
type Chain struct {
	Head uint16
	Out  [][]byte // to be read
	In   [][]byte // to be written
	InAt []uint64 // guest-physical addresses of In
}

// Size returns the total size of the buffers.
func Size(buffers [][]byte) (n int) {
	for _, b := range buffers {
		n += len(b)
	}
	return n
}

// Begin locks the ring if it is enabled. End unlocks it.
func (r *Ring) Begin() bool {
	r.mu.Lock()
	if r.started && r.enabled && !r.broken && r.desc != nil {
		return true
	}
	r.mu.Unlock()
	return false
}

// End unlocks the ring.
func (r *Ring) End() { r.mu.Unlock() }

// Waiting returns the number of available chains that have not been taken.
func (r *Ring) Waiting() int { return int(load16(r.avail, 2) - r.last) }

// Next takes a chain; it returns false if there is none. The buffers lie in the guest's memory.
func (r *Ring) Next(c *Chain) (bool, error) {
	n := load16(r.avail, 2) - r.last
	if n == 0 {
		return false, nil
	}
	if int(n) > r.num {
		return false, r.breaks("%d chains are available in a ring of %d", n, r.num)
	}
	slot := 4 + 2*(int(r.last)&(r.num-1))
	c.Head, c.Out, c.In, c.InAt = load16(r.avail, slot), c.Out[:0], c.In[:0], c.InAt[:0]
	if err := r.follow(c); err != nil {
		return false, err
	}
	r.last++
	return true, nil
}

// follow reads the descriptors of a chain, each once, and at most as many as the ring has.
func (r *Ring) follow(c *Chain) error {
	table, n, i := r.desc, r.num, int(c.Head)
	inside := false
	for count := 0; ; count++ {
		if count > r.num {
			return r.breaks("a chain has more than the %d descriptors of its ring, or it loops", r.num)
		}
		if i >= n {
			return r.breaks("descriptor %d is none of %d", i, n)
		}
		d := table[descSize*i : descSize*(i+1) : descSize*(i+1)]
		at, size, flags, next := le.Uint64(d), le.Uint32(d[8:]), le.Uint16(d[12:]), le.Uint16(d[14:])
		if flags&descIndirect != 0 {
			if inside || flags&(descNext|descWrite) != 0 || size == 0 || size%descSize != 0 || size/descSize > uint32(r.num) {
				return r.breaks("an indirect table of %d bytes, with flags %#x", size, flags)
			}
			if table = r.memory.Slice(at, uint64(size)); len(table) != int(size) {
				return r.breaks("an indirect table at %#x, outside of RAM", at)
			}
			n, i, inside = int(size)/descSize, 0, true
			continue
		}
		if err := r.buffer(c, at, size, flags); err != nil {
			return err
		}
		if flags&descNext == 0 {
			return nil
		}
		i = int(next)
	}
}

// buffer adds the buffer of a descriptor. It may span two adjacent regions.
func (r *Ring) buffer(c *Chain, at uint64, size uint32, flags uint16) error {
	if flags&descWrite == 0 && len(c.In) > 0 {
		return r.breaks("a buffer to be read follows one to be written")
	}
	for size > 0 {
		b := r.memory.Slice(at, uint64(size))
		if b == nil {
			return r.breaks("a buffer at %#x, outside of RAM", at)
		}
		if flags&descWrite != 0 {
			c.In, c.InAt = append(c.In, b), append(c.InAt, at)
		} else {
			c.Out = append(c.Out, b)
		}
		at, size = at+uint64(len(b)), size-uint32(len(b))
	}
	return nil
}

// breaks stops the ring and returns the error.
func (r *Ring) breaks(format string, args ...any) error {
	r.broken = true
	err := fmt.Errorf("virtqueue %d: %w: %s", r.Index, ErrBroken, fmt.Sprintf(format, args...))
	if r.conn.device.Broken != nil {
		r.conn.device.Broken(r, err)
	}
	return err
}

// Mark saves the ring's position for Rewind.
func (r *Ring) Mark() { r.mark = [2]uint16{r.last, r.next} }

// Rewind makes the chains taken and put since Mark available again. None of them may have been published.
func (r *Ring) Rewind() { r.last, r.next = r.mark[0], r.mark[1] }

// Put returns a chain into which n bytes were written. The driver sees it after Publish.
func (r *Ring) Put(c *Chain, n int) {
	b := r.used[4+8*(int(r.next)&(r.num-1)):]
	le.PutUint32(b, uint32(c.Head))
	le.PutUint32(b[4:], uint32(n))
	r.next++
	if r.log != nil {
		r.wroteIn(c, n)
	}
}

// Publish makes returned chains visible to the driver, and interrupts it if it wants that.
func (r *Ring) Publish() {
	if r.next == r.told {
		return
	}
	flags := uint32(0)
	if r.quiet && !r.events {
		flags = noNotify
	}
	// The store is a full fence: the driver sees the index, or this side sees what the driver wrote before it checked the index.
	pair(r.used).Store(flags | uint32(r.next)<<16)
	if r.log != nil {
		r.wrotePublished()
	}
	wants := false
	if r.events {
		at := load16(r.avail, 4+2*r.num)
		wants = r.next-at-1 < r.next-r.told
	} else {
		wants = load16(r.avail, 0)&noInterrupt == 0
	}
	r.told = r.next
	if wants {
		r.interrupt()
	}
}

// Quiet asks the driver not to kick, while this side polls the ring anyway.
func (r *Ring) Quiet() {
	r.quiet = true
	r.setNotify(r.last-1, noNotify)
}

// Listen asks the driver to kick when it makes the next chain available. It returns true if there is one already: then there will be no
// kick.
func (r *Ring) Listen() bool { return r.ListenFor(1) }

// ListenFor is Listen for a caller that needs at least n chains.
func (r *Ring) ListenFor(n int) bool {
	r.quiet = false
	r.setNotify(r.last+uint16(n)-1, 0)
	return int(load16(r.avail, 2)-r.last) >= n
}

// setNotify tells the driver after which chain to kick, or whether to kick at all.
func (r *Ring) setNotify(after uint16, flags uint32) {
	at, n := 0, 4
	if r.events {
		at, n = 4+8*r.num, 2
		store16(r.used, at, after)
	} else {
		pair(r.used).Store(flags | uint32(r.told)<<16)
	}
	if r.log != nil {
		r.wroteUsed(at, n)
	}
}

// Conn returns the connection of the ring.
func (r *Ring) Conn() *Conn { return r.conn }

// place maps the parts of the ring in m and takes over its hold. The caller holds mu.
func (r *Ring) place(m *Memory) {
	if r.memory != nil {
		r.memory.Release()
	}
	r.memory, r.desc, r.avail, r.used = m, nil, nil, nil
	if m == nil || r.num == 0 || r.descAt|r.availAt|r.usedAt == 0 {
		return
	}
	desc := m.atUser(r.descAt, uint64(descSize*r.num))
	// Both end with a word that is read as part of a pair.
	avail := m.atUser(r.availAt, uint64(4+2*r.num+4))
	used := m.atUser(r.usedAt, uint64(4+8*r.num+4))
	if desc == nil || avail == nil || used == nil || !aligned(desc) || !aligned(avail) || !aligned(used) {
		return
	}
	r.desc, r.avail, r.used = desc, avail, used
}
