package vhostuser

import (
	"encoding/binary"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	ramSize = 1 << 20
	ramBase = 0x4000_0000      // the guest's address of its RAM
	ramUser = 0x7f00_0000_0000 // the front end's address of the same RAM
	ringNum = 16
	// usedArea is where the used rings are: pages that the driver does not write.
	usedArea = 0x8000
	wait     = time.Minute
)

// A frontEnd is QEMU and a driver in its guest, with memory of its own mapping.
type frontEnd struct {
	t      *testing.T
	socket *net.UnixConn
	file   *os.File
	ram    []byte
	served chan error
	conn   *Conn
	rings  []*driverRing
	heap   uint64 // offset of unused memory
	step   func() // called before each request; nil: nothing is
}

// A driverRing is a ring as the driver sees it. Offsets are those in RAM.
type driverRing struct {
	f                 *frontEnd
	index             int
	desc, avail, used uint64
	kick, call        *os.File
	added, seen       uint16
}

// memfd returns a file in memory.
func memfd(t *testing.T, size int64) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("ram", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "ram")
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return f
}

// socketPair is two connected sockets.
func socketPair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	conn := func(fd int) *net.UnixConn {
		f := os.NewFile(uintptr(fd), "socket")
		defer f.Close()
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c.(*net.UnixConn)
	}
	return conn(fds[0]), conn(fds[1])
}

// connect makes a back end serve d to a new front end.
func connect(t *testing.T, d *Device) *frontEnd {
	t.Helper()
	f := &frontEnd{t: t, file: memfd(t, ramSize), heap: 0x10000}
	var err error
	if f.ram, err = unix.Mmap(int(f.file.Fd()), 0, ramSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(f.ram) })
	f.serve(d)
	return f
}

// serve starts a back end, which ends with the test.
func (f *frontEnd) serve(d *Device) {
	var other *net.UnixConn
	f.socket, other = socketPair(f.t)
	f.socket.SetDeadline(time.Now().Add(wait))
	served, ready, socket := make(chan error, 1), make(chan *Conn, 1), f.socket
	go func() {
		served <- Serve(other, d, func(c *Conn) { ready <- c })
		close(served)
	}()
	f.served, f.conn = served, <-ready
	f.t.Cleanup(func() {
		socket.Close()
		select {
		case <-served:
		case <-time.After(wait):
			f.t.Error("the back end does not end")
		}
	})
}

// ask sends a request and returns its reply, if it has one.
func (f *frontEnd) ask(r Request, flags uint32, body []byte, replies bool, fds ...int) []byte {
	f.t.Helper()
	if f.step != nil {
		f.step()
	}
	b := le.AppendUint32(nil, uint32(r))
	b = le.AppendUint32(b, version|flags)
	b = append(le.AppendUint32(b, uint32(len(body))), body...)
	if _, _, err := f.socket.WriteMsgUnix(b, unix.UnixRights(fds...), nil); err != nil {
		f.t.Fatalf("%v: %v", r, err)
	}
	if !replies {
		return nil
	}
	var h [headerSize]byte
	if _, err := io.ReadFull(f.socket, h[:]); err != nil {
		f.t.Fatalf("no reply to %v: %v", r, err)
	}
	if Request(le.Uint32(h[:])) != r || le.Uint32(h[4:]) != version|flagReply {
		f.t.Fatalf("reply %x to %v", h, r)
	}
	reply := make([]byte, le.Uint32(h[8:]))
	if _, err := io.ReadFull(f.socket, reply); err != nil {
		f.t.Fatal(err)
	}
	return reply
}

func u64(v ...uint64) (b []byte) {
	for _, x := range v {
		b = le.AppendUint64(b, x)
	}
	return b
}

func u32(v ...uint32) (b []byte) {
	for _, x := range v {
		b = le.AppendUint32(b, x)
	}
	return b
}

// start does what QEMU does when a driver starts, with n rings.
func (f *frontEnd) start(rings int, features uint64, base ...uint16) {
	f.t.Helper()
	if got := le.Uint64(f.ask(getFeatures, 0, nil, true)); features&^got != 0 {
		f.t.Fatalf("features %#x are offered: want %#x too", got, features)
	}
	p := le.Uint64(f.ask(getProtocolFeatures, 0, nil, true))
	f.ask(setProtocolFeatures, 0, u64(p), false)
	f.ask(setOwner, 0, nil, false)
	f.ask(setFeatures, 0, u64(features|protocolFeatures|Version1), false)
	f.table()
	f.rings = nil
	for i := range rings {
		at := uint64(i) * 0x1000
		r := &driverRing{f: f, index: i, desc: at, avail: at + 0x400, used: usedArea + at, kick: event(f.t), call: event(f.t)}
		f.rings = append(f.rings, r)
		f.ask(setVringNum, 0, u32(uint32(i), ringNum), false)
		first := uint32(0)
		if i < len(base) {
			first = uint32(base[i])
			r.added, r.seen = base[i], base[i]
		}
		f.ask(setVringBase, 0, u32(uint32(i), first), false)
		f.ask(setVringAddr, 0, append(u32(uint32(i), 0), u64(ramUser+r.desc, ramUser+r.used, ramUser+r.avail, 0)...), false)
		f.ask(setVringKick, 0, u64(uint64(i)), false, number(r.kick))
		f.ask(setVringCall, 0, u64(uint64(i)), false, number(r.call))
	}
	for i := range rings {
		if got := f.ask(setVringEnable, flagNeed, u32(uint32(i), 1), true); le.Uint64(got) != 0 {
			f.t.Fatalf("ring %d: %x", i, got)
		}
	}
}

// table sends the memory table.
func (f *frontEnd) table() {
	f.t.Helper()
	if got := f.ask(setMemTable, flagNeed, append(u32(1, 0), u64(ramBase, ramSize, ramUser, 0)...), true, int(f.file.Fd())); le.Uint64(got) != 0 {
		f.t.Fatalf("SET_MEM_TABLE: %x", got)
	}
}

// ended waits until the back end has ended.
func (f *frontEnd) ended() error {
	f.t.Helper()
	select {
	case err := <-f.served:
		return err
	case <-time.After(wait):
		f.t.Fatal("the back end goes on")
		return nil
	}
}

// event returns an eventfd whose readers wait for a minute.
func event(t *testing.T) *os.File {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	e := os.NewFile(uintptr(fd), "eventfd")
	t.Cleanup(func() { e.Close() })
	e.SetDeadline(time.Now().Add(wait))
	return e
}

// alloc allocates memory of the guest.
func (f *frontEnd) alloc(n int) (guest uint64, b []byte) {
	at := f.heap
	f.heap += uint64(n+15) &^ 15
	return ramBase + at, f.ram[at : at+uint64(n)]
}

// number returns a file's descriptor. File.Fd would make it block.
func number(f *os.File) (n int) {
	raw, err := f.SyscallConn()
	if err != nil {
		panic(err)
	}
	raw.Control(func(fd uintptr) { n = int(fd) })
	return n
}

type desc struct {
	at    uint64
	size  uint32
	flags uint16
	next  uint16
}

func putDesc(b []byte, i int, d desc) {
	b = b[descSize*i:]
	le.PutUint64(b, d.at)
	le.PutUint32(b[8:], d.size)
	le.PutUint16(b[12:], d.flags)
	le.PutUint16(b[14:], d.next)
}

// write puts a descriptor into the table.
func (r *driverRing) write(i int, d desc) { putDesc(r.f.ram[r.desc:], i, d) }

// add makes the chain that begins with a descriptor available, and kicks.
func (r *driverRing) add(head uint16) {
	a := r.f.ram[r.avail:]
	le.PutUint16(a[4+2*(r.added%ringNum):], head)
	r.added++
	pair(a).Store(uint32(binary.LittleEndian.Uint16(a)) | uint32(r.added)<<16)
	r.kick.Write(one)
}

// wait waits until the next chain is returned.
func (r *driverRing) wait() (head, n uint32) {
	r.f.t.Helper()
	u := r.f.ram[r.used:]
	var b [8]byte
	for load16(u, 2) == r.seen {
		// With RingEventIdx the driver names the chain after which it wants a notification.
		store16(r.f.ram[r.avail:], 4+2*ringNum, r.seen) // a fence, too
		if load16(u, 2) != r.seen {
			break
		}
		if _, err := r.call.Read(b[:]); err != nil {
			r.f.t.Fatalf("nothing comes back: %v", err)
		}
	}
	e := u[4+8*(r.seen%ringNum):]
	r.seen++
	return le.Uint32(e), le.Uint32(e[4:])
}
