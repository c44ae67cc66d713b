package vhostuser

import (
	"errors"
	"fmt"
	"math"
)

// While QEMU migrates a guest, a bitmap in shared memory tells it which pages this side has written: the dirty log. QEMU sends these
// pages again. It stops the rings before it reads the log for the last time.
//
//	SET_LOG_BASE   the bitmap: one bit for each 4 KiB of guest-physical address
//	SET_FEATURES   with LogAll: log from now on; without: no more
//	SET_VRING_ADDR the guest-physical address of the used ring, and whether its changes are logged
//
// A page is logged after it was written: a bit that is set before could be read, and the page sent, before the write.

// logPageBits is the logarithm of the size of a page in the log.
const logPageBits = 12

// maxLog limits the size of a log in bytes: guest-physical addresses up to 8 TiB, because RAM has gaps.
const maxLog = 2 * maxRAM >> logPageBits / 8

// ringLogged is the flag of SET_VRING_ADDR for a used ring whose changes are logged.
const ringLogged = 1 << 0

// newLog maps the log of a SET_LOG_BASE.
func (d *Device) newLog(size, offset uint64, fd int) (*Region, error) {
	if fd < 0 {
		return nil, errors.New("the log of written pages came without its descriptor")
	}
	// Words of 32 bits are changed atomically. QEMU's log consists of words of 64.
	if size > maxLog || size%8 != 0 || offset%8 != 0 {
		return nil, fmt.Errorf("a log of %#x bytes at offset %#x: want multiples of 8, and %#x bytes at most", size, offset, uint64(maxLog))
	}
	var b []byte
	for _, v := range []uint64{0, size, 0, offset} {
		b = le.AppendUint64(b, v)
	}
	r, err := d.newRegion(b, fd)
	if err != nil {
		return nil, fmt.Errorf("the log of written pages: %w", err)
	}
	return r, nil
}

// markPages sets the bits of the pages of n bytes at a guest-physical address. Pages beyond the end of the log are ignored: QEMU makes
// the log longer before the guest gets such memory.
func markPages(log []byte, guest, n uint64) {
	if n == 0 {
		return
	}
	end := guest + n - 1
	if end < guest {
		end = math.MaxUint64
	}
	pages := uint64(len(log)) * 8
	for page := guest >> logPageBits; page <= end>>logPageBits && page < pages; page++ {
		pair(log[page/32*4:]).Or(1 << (page % 32)) // a full fence, so the log is never ahead of the page
	}
}

// Wrote logs that n bytes at a guest-physical address were written, if the guest is being migrated. The caller holds the ring. Put logs
// what is written before it, so only a later write needs Wrote.
func (r *Ring) Wrote(guest uint64, n int) {
	if r.log != nil {
		markPages(r.log, guest, uint64(n))
	}
}

// wroteUsed logs a write of n bytes at an offset in the used ring. The log is on.
func (r *Ring) wroteUsed(at, n int) {
	if r.usedLogged {
		markPages(r.log, r.usedLogAt+uint64(at), uint64(n))
	}
}

// wroteIn logs the first n bytes of the buffers of a chain. The log is on.
func (r *Ring) wroteIn(c *Chain, n int) {
	for i, b := range c.In {
		k := min(n, len(b))
		markPages(r.log, c.InAt[i], uint64(k))
		if n -= k; n == 0 {
			return
		}
	}
}

// wrotePublished logs what Publish has written. The log is on.
func (r *Ring) wrotePublished() {
	for i := r.told; i != r.next; i++ {
		r.wroteUsed(4+8*(int(i)&(r.num-1)), 8)
	}
	r.wroteUsed(0, 4)
}

// setLogging makes all rings use the current log, or none. When it returns, no ring uses another one.
func (c *Conn) setLogging() {
	c.mu.Lock()
	var log []byte
	if c.log != nil && c.features&LogAll != 0 {
		log = c.log.bytes
	}
	c.mu.Unlock()
	for _, r := range c.rings {
		r.mu.Lock()
		r.log = log
		r.mu.Unlock()
	}
}

// setLog replaces the log and takes over the hold of log; nil: there is none any more.
func (c *Conn) setLog(log *Region) {
	c.mu.Lock()
	old := c.log
	c.log = log
	c.mu.Unlock()
	c.setLogging()
	if old != nil {
		old.Release()
	}
}

func (c *Conn) setLogBase(m *message) ([]byte, error) {
	fd := m.take(0)
	defer closeAll([]int{fd})
	log, err := c.device.newLog(le.Uint64(m.body), le.Uint64(m.body[8:]), fd)
	if err != nil {
		return nil, err
	}
	c.setLog(log)
	if c.protocol&protocolLogFD == 0 {
		return nil, nil
	}
	return reply64(0)
}
