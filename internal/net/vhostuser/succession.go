package vhostuser

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A live upgrade: the next daemon continues with the connection of a front end, which notices nothing.
//
//	old daemon   Pause: no request is between its message and its answer ── Hold: no ring moves ── Freeze
//	next daemon  Thaw: maps the memory, places the rings ──────────────── Continue: starts the rings, answers requests
//
// A ring that stands still has returned every chain that it has taken, so its state is its position, as with a front end
// that reconnects. Kicks that the old daemon has read, and calls that it has not made, are made up for: a ring looks at
// its chains when it starts, and interrupts its driver once. From Hold on the old daemon reads no kick: it lives for some
// milliseconds beside the next one, and the two have the same eventfds.

// ConnState is the state of a Conn. Package state has the rules for the structs. File, Kick and Call name descriptors; 0 is none.
type ConnState struct {
	Features uint64        `cbor:"1,keyasint,omitempty"`
	Protocol uint64        `cbor:"2,keyasint,omitempty"`
	Regions  []RegionState `cbor:"3,keyasint,omitempty"`
	Rings    []RingState   `cbor:"4,keyasint,omitempty"` // those that the front end has set up
	Log      *LogState     `cbor:"5,keyasint,omitempty"` // nil: the guest is not being migrated
}

// RegionState is a region of the guest's memory.
type RegionState struct {
	Guest  uint64 `cbor:"1,keyasint,omitempty"`
	Size   uint64 `cbor:"2,keyasint,omitempty"`
	User   uint64 `cbor:"3,keyasint,omitempty"`
	Offset uint64 `cbor:"4,keyasint,omitempty"`
	Again  int    `cbor:"5,keyasint,omitempty"`
	File   uint32 `cbor:"6,keyasint,omitempty"`
}

// LogState is the log of written pages.
type LogState struct {
	Size   uint64 `cbor:"1,keyasint,omitempty"`
	Offset uint64 `cbor:"2,keyasint,omitempty"`
	File   uint32 `cbor:"3,keyasint,omitempty"`
}

// RingState is the state of a Ring.
type RingState struct {
	Index   int    `cbor:"1,keyasint,omitempty"`
	Num     int    `cbor:"2,keyasint,omitempty"`
	Desc    uint64 `cbor:"3,keyasint,omitempty"`
	Avail   uint64 `cbor:"4,keyasint,omitempty"`
	Used    uint64 `cbor:"5,keyasint,omitempty"`
	Base    uint16 `cbor:"6,keyasint,omitempty"` // the position, or that of SET_VRING_BASE
	Enabled bool   `cbor:"7,keyasint,omitempty"`
	Kick    uint32 `cbor:"8,keyasint,omitempty"` // 0: the ring is not started, or its driver has violated the protocol
	Call    uint32 `cbor:"9,keyasint,omitempty"`
	Logged  bool   `cbor:"10,keyasint,omitempty"` // the changes of the used ring
	LogAt   uint64 `cbor:"11,keyasint,omitempty"`
}

// A pause is a time in which a Conn answers no requests.
type pause struct{ parked, over chan struct{} }

// rest waits until the pause is over, if there is one.
func (c *Conn) rest() {
	if p := c.pause.Load(); p != nil {
		close(p.parked)
		<-p.over
	}
}

// Pause keeps requests in the socket, until resume is called. It fails, and changes nothing, if a request is not answered
// before ctx ends.
func (c *Conn) Pause(ctx context.Context) (resume func(), err error) {
	p := &pause{make(chan struct{}), make(chan struct{})}
	c.pause.Store(p)
	resume = func() {
		c.pause.Store(nil)
		c.socket.SetReadDeadline(time.Time{}) // fails if it is closed
		close(p.over)
	}
	// readAll of a request that is arriving clears the deadline.
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		c.socket.SetReadDeadline(time.Unix(1, 0))
		select {
		case <-p.parked:
			return resume, nil
		case <-c.ended:
			return resume, nil
		case <-ctx.Done():
			resume()
			return nil, errors.New("a request of a virtual machine's QEMU is not answered")
		case <-time.After(wait):
		}
	}
}

// Paused reports whether Pause has paused c.
func (c *Conn) Paused() bool { return c.pause.Load() != nil }

// Ended reports whether the front end has gone. If it has when Pause returns, there is no state.
func (c *Conn) Ended() bool {
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}

// Hold keeps a ring from moving, and leaves its kicks in the eventfd, until End. It fails if a caller of Begin does not call End before ctx
// ends.
func (r *Ring) Hold(ctx context.Context) error {
	for !r.mu.TryLock() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("virtqueue %d of a virtual machine does not stop", r.Index)
		case <-time.After(50 * time.Microsecond):
		}
	}
	if r.listener != nil {
		r.listener.suspend(ctx)
	}
	return nil
}

// Freeze returns the state of c, which is paused and has not ended, and whose rings are held. add names a descriptor, which stays open as
// long as the rings are held. Only requests change what mu guards, and there are none.
func (c *Conn) Freeze(add func(fd int) uint32) (*ConnState, error) {
	st := &ConnState{Features: c.features, Protocol: c.protocol}
	if c.memory != nil {
		for _, r := range c.memory.regions {
			st.Regions = append(st.Regions, r.Freeze(add))
		}
	}
	if c.log != nil {
		st.Log = &LogState{Size: uint64(len(c.log.bytes)), Offset: c.log.offset, File: add(c.log.fd)}
	}
	for _, r := range c.rings {
		if r.num == 0 {
			continue
		}
		rs := RingState{Index: r.Index, Num: r.num, Desc: r.descAt, Avail: r.availAt, Used: r.usedAt, Base: r.base, Enabled: r.enabled, Logged: r.usedLogged, LogAt: r.usedLogAt}
		if r.started {
			rs.Base = r.last
		}
		if r.started && !r.broken {
			if r.next != r.told {
				return nil, fmt.Errorf("virtqueue %d has chains that are not published", r.Index)
			}
			fd, err := descriptorOf(r.listener.kick)
			if err != nil {
				return nil, err
			}
			rs.Kick = add(fd)
		}
		if f := r.call.Load(); f != nil {
			fd, err := descriptorOf(f)
			if err != nil {
				return nil, err
			}
			rs.Call = add(fd)
		}
		st.Rings = append(st.Rings, rs)
	}
	return st, nil
}

// Freeze returns the state of r. add names a descriptor, which stays open while r is held.
func (r *Region) Freeze(add func(fd int) uint32) RegionState {
	return RegionState{Guest: r.Guest, Size: uint64(len(r.bytes)), User: r.user, Offset: r.offset, Again: r.again, File: add(r.fd)}
}

// ThawRegion maps a region as the guest's front end has described it. file returns a descriptor, which ThawRegion closes. The caller
// holds the region.
func (d *Device) ThawRegion(st *RegionState, file func(uint32) (int, error)) (*Region, error) {
	fd, err := file(st.File)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var b []byte
	for _, v := range []uint64{st.Guest, st.Size, st.User, st.Offset} {
		b = le.AppendUint64(b, v)
	}
	r, err := d.newRegion(b, fd)
	if err == nil {
		r.again = max(st.Again, 0)
	}
	return r, err
}

// descriptorOf returns the descriptor of a file. Unlike File.Fd it leaves the file non-blocking.
func descriptorOf(f *os.File) (fd int, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	err = raw.Control(func(of uintptr) { fd = int(of) })
	return fd, err
}

// Thaw makes a Conn that continues with the state of another daemon's. file returns a descriptor, which Thaw closes.
// Until Continue the guest's memory is not accessed, and the socket not read. After an error the caller ends the process.
func Thaw(socket *net.UnixConn, d *Device, st *ConnState, file func(uint32) (int, error)) (c *Conn, start func() error, err error) {
	c = newConn(socket, d)
	if c.protocol = st.Protocol; st.Protocol&^offered != 0 {
		return nil, nil, fmt.Errorf("protocol features %#x are not offered by this version", st.Protocol&^offered)
	}
	if _, err := c.setFeatures(&message{body: le.AppendUint64(nil, st.Features)}); err != nil {
		return nil, nil, err
	}
	if err := c.thawMemory(st.Regions, file); err != nil {
		return nil, nil, err
	}
	if err := c.thawLog(st.Log, file); err != nil {
		return nil, nil, err
	}
	var starts []func() error
	seen := make(map[int]bool)
	for i := range st.Rings {
		rs := &st.Rings[i]
		if rs.Index < 0 || rs.Index >= len(c.rings) || seen[rs.Index] {
			return nil, nil, fmt.Errorf("virtqueue %d is none of %d, or there twice", rs.Index, len(c.rings))
		}
		seen[rs.Index] = true
		s, err := c.thawRing(rs, file)
		if err != nil {
			return nil, nil, err
		}
		starts = append(starts, s)
		c.runs = c.runs || rs.Kick != 0
	}
	start = func() error {
		return c.contained(func() error {
			for _, s := range starts {
				if err := s(); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return c, start, nil
}

// Continue is Serve for a Conn of Thaw. start is that of Thaw.
func (c *Conn) Continue(start func() error) error {
	defer c.socket.Close()
	c.spawn(c.caller)
	if err := start(); err != nil {
		c.end()
		return err
	}
	return c.answerAll()
}

// thawMemory maps the regions.
func (c *Conn) thawMemory(list []RegionState, file func(uint32) (int, error)) error {
	if len(list) == 0 {
		return nil
	}
	if len(list) > maxSlots {
		return fmt.Errorf("%d regions of memory", len(list))
	}
	var regions []*Region
	for i := range list {
		r, err := c.device.ThawRegion(&list[i], file)
		if err != nil {
			return c.adopt(regions, err)
		}
		regions = append(regions, r)
	}
	return c.adopt(regions, nil)
}

// thawLog maps the log of written pages.
func (c *Conn) thawLog(st *LogState, file func(uint32) (int, error)) error {
	if st == nil {
		return nil
	}
	fd, err := file(st.File)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	log, err := c.device.newLog(st.Size, st.Offset, fd)
	if err != nil {
		return err
	}
	c.setLog(log)
	return nil
}

// thawRing does what the front end's requests have done to a ring, up to those that start it. start does the rest.
func (c *Conn) thawRing(rs *RingState, file func(uint32) (int, error)) (start func() error, err error) {
	index := le.AppendUint32(nil, uint32(rs.Index))
	number := func(v uint32) *message { return &message{body: le.AppendUint32(append([]byte{}, index...), v)} }
	if _, err := c.setVringNum(number(uint32(rs.Num))); err != nil {
		return nil, err
	}
	at := number(0)
	if rs.Logged {
		le.PutUint32(at.body[4:], ringLogged)
	}
	for _, v := range []uint64{rs.Desc, rs.Used, rs.Avail, rs.LogAt} {
		at.body = le.AppendUint64(at.body, v)
	}
	if _, err := c.setVringAddr(at); err != nil {
		return nil, err
	}
	if _, err := c.setVringBase(number(uint32(rs.Base))); err != nil {
		return nil, err
	}
	fds := [2]int{-1, -1}
	for i, fd := range []uint32{rs.Call, rs.Kick} {
		if fd == 0 {
			continue
		}
		if fds[i], err = file(fd); err != nil {
			return nil, err
		}
	}
	r := c.rings[rs.Index]
	r.last = rs.Base // for GET_VRING_BASE, if the ring is not started
	event := func(fd int) *message {
		return &message{body: le.AppendUint64(nil, uint64(rs.Index)), fds: []int{fd}}
	}
	return func() error {
		if fds[0] >= 0 {
			if _, err := c.setVringCall(event(fds[0])); err != nil {
				return err
			}
		}
		r.mu.Lock()
		r.enabled = rs.Enabled
		r.mu.Unlock()
		if fds[1] < 0 {
			return nil
		}
		_, err := c.setVringKick(event(fds[1]))
		return err
	}, nil
}
