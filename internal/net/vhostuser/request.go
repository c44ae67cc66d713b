package vhostuser

import (
	"errors"
	"fmt"
	"os"
)

// This file has the request handlers. They run one after another on the goroutine of Serve.

func nothing(*Conn, *message) ([]byte, error) { return nil, nil }

func reply64(v uint64) ([]byte, error) { return le.AppendUint64(nil, v), nil }

func (c *Conn) getFeatures(*message) ([]byte, error) {
	return reply64(c.device.features())
}

func (c *Conn) setFeatures(m *message) ([]byte, error) {
	f := m.u64()
	if more := f &^ c.device.features(); more != 0 {
		return nil, fmt.Errorf("features %#x were not offered", more)
	}
	c.mu.Lock()
	c.features = f
	c.mu.Unlock()
	for _, r := range c.rings {
		r.mu.Lock()
		r.events = f&RingEventIdx != 0
		r.mu.Unlock()
	}
	c.setLogging()
	return nil, nil
}

func (c *Conn) getProtocolFeatures(*message) ([]byte, error) { return reply64(offered) }

func (c *Conn) setProtocolFeatures(m *message) ([]byte, error) {
	if more := m.u64() &^ offered; more != 0 {
		return nil, fmt.Errorf("protocol features %#x were not offered", more)
	}
	c.protocol = m.u64()
	return nil, nil
}

func (c *Conn) getQueueNum(*message) ([]byte, error) { return reply64(uint64(c.device.Queues)) }

func (c *Conn) getMaxMemSlots(*message) ([]byte, error) { return reply64(maxSlots) }

func (c *Conn) sendRARP(m *message) ([]byte, error) {
	if c.device.Announce != nil {
		c.device.Announce([6]byte(m.body))
	}
	return nil, nil
}

func (c *Conn) netSetMTU(m *message) ([]byte, error) {
	if mtu := m.u64(); c.device.MTU != 0 && mtu > uint64(c.device.MTU) {
		return nil, fmt.Errorf("the card's MTU is %d, and the network's %d: set host_mtu=%d", mtu, c.device.MTU, c.device.MTU)
	}
	return nil, nil
}

// reset handles RESET_OWNER, which QEMU does not send, and RESET_DEVICE.
func (c *Conn) reset(*message) ([]byte, error) {
	for _, r := range c.rings {
		r.stop()
		r.mu.Lock()
		r.enabled = false
		r.mu.Unlock()
	}
	c.stopped()
	return nil, nil
}

// starting is called before a ring starts.
func (c *Conn) starting() error {
	if c.runs {
		return nil
	}
	if c.device.Starts != nil {
		if err := c.device.Starts(c); err != nil {
			return err
		}
	}
	c.runs = true
	return nil
}

// stopped is called when rings have stopped.
func (c *Conn) stopped() {
	for _, r := range c.rings {
		r.mu.Lock()
		started := r.started
		r.mu.Unlock()
		if started {
			return
		}
	}
	if c.runs && c.device.Stops != nil {
		c.device.Stops(c)
	}
	c.runs = false
}

// Runs reports whether rings have started. It is called before Continue, or by Starts and Stops.
func (c *Conn) Runs() bool { return c.runs }

// setMemTable replaces the whole memory.
func (c *Conn) setMemTable(m *message) ([]byte, error) {
	n := int(le.Uint32(m.body))
	if n > maxRegions || len(m.body) < 8+n*regionSize || len(m.fds) != n {
		return nil, fmt.Errorf("%d regions in %d bytes, with %d descriptors", n, len(m.body), len(m.fds))
	}
	var regions []*Region
	var err error
	for i := 0; i < n && err == nil; i++ {
		var r *Region
		fd := m.take(i)
		if r, err = c.device.newRegion(m.body[8+i*regionSize:], fd); err == nil {
			regions = append(regions, r)
		}
		closeAll([]int{fd})
	}
	return nil, c.adopt(regions, err)
}

// adopt makes regions the guest's memory, unless err is set.
func (c *Conn) adopt(regions []*Region, err error) error {
	var memory *Memory
	if err == nil {
		memory, err = NewMemory(regions)
	}
	if err != nil {
		for _, r := range regions {
			r.Release()
		}
		return err
	}
	c.setMemory(memory)
	return nil
}

// setMemory installs m as the guest's memory and takes over its hold. When it returns, no ring uses the old one.
func (c *Conn) setMemory(m *Memory) {
	c.mu.Lock()
	old := c.memory
	c.memory = m
	c.mu.Unlock()
	for _, r := range c.rings {
		r.mu.Lock()
		if m == nil {
			r.place(nil)
		} else {
			r.place(m.hold())
		}
		r.mu.Unlock()
	}
	if old != nil {
		old.Release()
	}
	if c.device.Remembers != nil {
		c.device.Remembers(c)
	}
}

// regionsHeld returns the current regions with an additional hold.
func (c *Conn) regionsHeld() (regions []*Region) {
	if m := c.Memory(); m != nil {
		for _, r := range m.regions {
			r.Hold()
			regions = append(regions, r)
		}
		m.Release()
	}
	return regions
}

func (c *Conn) addMemReg(m *message) ([]byte, error) {
	fd := m.take(0)
	defer closeAll([]int{fd})
	if old := c.Memory(); old != nil {
		defer old.Release()
		for _, r := range old.regions {
			if r.same(m.body[8:], fd) {
				r.again++
				return nil, nil
			}
		}
	}
	r, err := c.device.newRegion(m.body[8:], fd)
	if err != nil {
		return nil, err
	}
	regions := append(c.regionsHeld(), r)
	if len(regions) > maxSlots {
		err = fmt.Errorf("more than %d regions of memory", maxSlots)
	}
	return nil, c.adopt(regions, err)
}

func (c *Conn) remMemReg(m *message) ([]byte, error) {
	guest, size, user, _, err := parseRegion(m.body[8:])
	if err != nil {
		return nil, err
	}
	regions := c.regionsHeld()
	for i, r := range regions {
		if r.Guest == guest && uint64(len(r.bytes)) == size && r.user == user {
			if r.again--; r.again >= 0 {
				return nil, c.adopt(regions, nil)
			}
			r.Release()
			return nil, c.adopt(append(regions[:i:i], regions[i+1:]...), nil)
		}
	}
	return nil, c.adopt(regions, fmt.Errorf("no region of %#x bytes at %#x", size, guest))
}

// ring returns the ring whose index is the first 32 bits of a message.
func (c *Conn) ring(m *message) (*Ring, error) {
	i := le.Uint32(m.body)
	if uint64(i) >= uint64(len(c.rings)) {
		return nil, fmt.Errorf("virtqueue %d is none of %d", i, len(c.rings))
	}
	return c.rings[i], nil
}

func (c *Conn) setVringNum(m *message) ([]byte, error) {
	r, err := c.ring(m)
	if err != nil {
		return nil, err
	}
	n := le.Uint32(m.body[4:])
	if n < 2 || n > maxNum || n&(n-1) != 0 {
		return nil, fmt.Errorf("virtqueue %d has %d descriptors: it has to be a power of two up to %d", r.Index, n, maxNum)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.started {
		return nil, fmt.Errorf("virtqueue %d is in use", r.Index)
	}
	r.num = int(n)
	if r.memory != nil { // the ring's parts have another length now
		r.place(r.memory.hold())
	}
	return nil, nil
}

func (c *Conn) setVringAddr(m *message) ([]byte, error) {
	r, err := c.ring(m)
	if err != nil {
		return nil, err
	}
	memory := c.Memory()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.usedLogged, r.usedLogAt = le.Uint32(m.body[4:])&ringLogged != 0, le.Uint64(m.body[32:])
	r.descAt, r.usedAt, r.availAt = le.Uint64(m.body[8:]), le.Uint64(m.body[16:]), le.Uint64(m.body[24:])
	r.place(memory)
	return nil, nil
}

func (c *Conn) setVringBase(m *message) ([]byte, error) {
	r, err := c.ring(m)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.started {
		return nil, fmt.Errorf("virtqueue %d is in use", r.Index)
	}
	r.base = le.Uint16(m.body[4:])
	return nil, nil
}

// getVringBase stops a ring and returns its position.
func (c *Conn) getVringBase(m *message) ([]byte, error) {
	r, err := c.ring(m)
	if err != nil {
		return nil, err
	}
	r.stop()
	c.stopped()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.base = r.last
	return le.AppendUint32(le.AppendUint32(nil, uint32(r.Index)), uint32(r.last)), nil
}

// fileRing returns the ring that a message with a descriptor names; bit 8 means that there is no descriptor.
func (c *Conn) fileRing(m *message) (r *Ring, fd int, err error) {
	v := m.u64()
	if v&^0x1ff != 0 || int(v&0xff) >= len(c.rings) {
		return nil, -1, fmt.Errorf("virtqueue %d is none of %d", v&0xff, len(c.rings))
	}
	if v&0x100 != 0 {
		return c.rings[v&0xff], -1, nil
	}
	if fd = m.take(0); fd < 0 {
		return nil, -1, errors.New("the descriptor is missing")
	}
	return c.rings[v&0xff], fd, nil
}

func (c *Conn) setVringCall(m *message) ([]byte, error) {
	r, fd, err := c.fileRing(m)
	if err != nil {
		return nil, err
	}
	var f *os.File
	if fd >= 0 {
		if f, err = eventfd(fd); err != nil {
			return nil, err
		}
	}
	if err := c.notHeldUp(); err != nil {
		if f != nil {
			f.Close()
		}
		return nil, err
	}
	r.setCall(f)
	r.interrupt() // an earlier back end may have been about to
	return nil, nil
}

// setVringKick starts a ring.
func (c *Conn) setVringKick(m *message) ([]byte, error) {
	r, fd, err := c.fileRing(m)
	if err != nil {
		return nil, err
	}
	if fd < 0 {
		return nil, errors.New("a virtqueue without a kick descriptor would have to be polled, which is not done")
	}
	r.stop()
	kick, err := eventfd(fd)
	if err != nil {
		return nil, err
	}
	if err := c.notHeldUp(); err != nil {
		kick.Close()
		return nil, err
	}
	if err := c.starting(); err != nil {
		kick.Close()
		return nil, err
	}
	c.mu.Lock()
	negotiated := c.features&protocolFeatures != 0
	c.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.desc == nil {
		kick.Close()
		return nil, fmt.Errorf("virtqueue %d does not lie in guest memory, or not aligned", r.Index)
	}
	next := load16(r.used, 2) // may fault
	r.last, r.next, r.told = r.base, next, next
	r.listener = &listener{kick: kick, stop: make(chan struct{}), done: make(chan struct{})}
	r.started, r.broken, r.quiet = true, false, false
	if !negotiated {
		r.enabled = true
	}
	l := r.listener
	c.spawn(func() { l.listen(r) })
	return nil, nil
}

func (c *Conn) setVringEnable(m *message) ([]byte, error) {
	r, err := c.ring(m)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	was := r.enabled
	r.enabled = le.Uint32(m.body[4:]) != 0
	wake := r.enabled && !was && r.started
	r.mu.Unlock()
	if r.enabled {
		r.interrupt() // as in setVringCall
	}
	if wake { // chains may be available already, kicked before
		r.kicks.Store(true)
		c.wakeCaller()
	}
	return nil, nil
}

// stop stops a ring and waits until its goroutine has ended.
func (r *Ring) stop() {
	r.mu.Lock()
	l := r.listener
	r.started, r.listener = false, nil
	r.mu.Unlock()
	if l != nil {
		l.end(r.conn)
	}
}
