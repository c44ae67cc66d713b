package vswitch

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/net/vhostuser"
)

const patience = time.Minute

// A driver is a minimal guest driver with its QEMU: one pair of rings of 16 descriptors.
type driver struct {
	t      *testing.T
	socket *net.UnixConn
	other  *net.UnixConn // the daemon's end
	ram    []byte
	kick   [2]*os.File
	added  [2]uint16
	heap   int
	served chan error
}

const (
	ramSize = 1 << 20
	ramUser = 0x10000
	entries = 16
	// The offsets of a ring's parts; rings are 4 KiB apart.
	availAt, usedAt = 0x400, 0x800
)

// Requests of QEMU.
const setFeatures, setMemTable, setNum, setAddr, setBase, getBase, setKick, setCall, setProtocol, setEnable = 2, 5, 8, 9, 10, 11, 12, 13, 16, 18

// attachDriver attaches a guest to a port, whose driver accepts these features.
func attachDriver(t *testing.T, p *Port, features uint64) *driver {
	t.Helper()
	d := connectDriver(t, p, features)
	d.start()
	return d
}

// socketPair is two connected sockets.
func socketPair(t *testing.T) (ends [2]*net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = c.(*net.UnixConn)
	}
	return ends
}

// connectDriver connects a guest to a port. Its rings do not run.
func connectDriver(t *testing.T, p *Port, features uint64) *driver {
	t.Helper()
	ends := socketPair(t)
	fd, err := unix.MemfdCreate("ram", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, ramSize); err != nil {
		t.Fatal(err)
	}
	d := &driver{t: t, socket: ends[0], other: ends[1], heap: 0x4000, served: make(chan error, 1)}
	if d.ram, err = unix.Mmap(fd, 0, ramSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		t.Fatal(err)
	}
	go func() { d.served <- p.Serve(ends[1], new(vhostuser.Device), nil) }()
	t.Cleanup(func() {
		d.socket.Close()
		select {
		case <-d.served:
		case <-time.After(patience):
			t.Error("the guest's connection does not end")
		}
		unix.Munmap(d.ram)
	})
	d.ask(setProtocol, words(1<<3))
	d.ask(setFeatures, words(features|vhostuser.Version1|1<<30))
	d.ask(setMemTable, append(halves(1, 0), words(0, ramSize, ramUser, 0)...), fd)
	return d
}

// start starts the rings.
func (d *driver) start() {
	d.t.Helper()
	for i := range 2 {
		d.place(i)
		kick, call := newEvent(d.t), newEvent(d.t)
		d.kick[i] = kick
		d.ask(setKick, words(uint64(i)), number(kick))
		d.ask(setCall, words(uint64(i)), number(call))
		d.ask(setEnable, halves(uint32(i), 1))
	}
}

// place says where a ring is.
func (d *driver) place(i int) {
	d.t.Helper()
	at := uint64(ramUser + i*0x1000)
	d.ask(setNum, halves(uint32(i), entries))
	d.ask(setBase, halves(uint32(i), uint32(d.used(i))))
	d.ask(setAddr, append(halves(uint32(i), 0), words(at, at+usedAt, at+availAt, 0)...))
}

// refused tries to start a ring, which must end the connection.
func (d *driver) refused() {
	d.t.Helper()
	d.place(0)
	d.tell(setKick, words(0), number(newEvent(d.t)))
	if n, err := io.ReadAll(d.socket); err != nil || len(n) != 20 || n[12] == 0 {
		d.t.Errorf("the ring is started: %x, %v", n, err)
	}
}

// stop stops the rings.
func (d *driver) stop() {
	d.t.Helper()
	for i := range uint32(2) {
		d.tell(getBase, halves(i, 0))
		var b [20]byte
		if _, err := io.ReadFull(d.socket, b[:]); err != nil {
			d.t.Fatal(err)
		}
	}
}

func words(v ...uint64) (b []byte) {
	for _, x := range v {
		b = binary.LittleEndian.AppendUint64(b, x)
	}
	return b
}

func halves(v ...uint32) (b []byte) {
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, x)
	}
	return b
}

func newEvent(t *testing.T) *os.File {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "event")
	t.Cleanup(func() { f.Close() })
	return f
}

// number returns a file's descriptor. File.Fd would make it block.
func number(f *os.File) (n int) {
	if raw, err := f.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { n = int(fd) })
	}
	return n
}

// ask sends a request and waits until it is done.
func (d *driver) ask(request uint32, body []byte, fds ...int) {
	d.t.Helper()
	d.tell(request, body, fds...)
	var b [20]byte
	if _, err := io.ReadFull(d.socket, b[:]); err != nil || b[12] != 0 {
		d.t.Fatalf("request %d: %v, %x", request, err, b)
	}
}

// tell sends a request.
func (d *driver) tell(request uint32, body []byte, fds ...int) {
	d.t.Helper()
	const need = 1 | 1<<3
	d.socket.SetDeadline(time.Now().Add(patience))
	if _, _, err := d.socket.WriteMsgUnix(append(halves(request, need, uint32(len(body))), body...), unix.UnixRights(fds...), nil); err != nil {
		d.t.Fatal(err)
	}
}

// add makes one buffer available in a ring, for the device to write to or with content to be read.
func (d *driver) add(ring int, size int, content []byte) (at int) {
	at = d.heap
	d.heap += (size + 15) &^ 15
	copy(d.ram[at:], content)
	i := int(d.added[ring]) % entries
	desc := d.ram[ring*0x1000+16*i:]
	binary.LittleEndian.PutUint64(desc, uint64(at))
	binary.LittleEndian.PutUint32(desc[8:], uint32(size))
	flags := uint16(2)
	if content != nil {
		flags = 0
	}
	binary.LittleEndian.PutUint32(desc[12:], uint32(flags))
	a := ring*0x1000 + availAt
	binary.LittleEndian.PutUint16(d.ram[a+4+2*i:], uint16(i))
	d.added[ring]++
	d.word(a).Store(uint32(d.added[ring]) << 16)
	d.kick[ring].Write([]byte{1, 0, 0, 0, 0, 0, 0, 0})
	return at
}

// send sends a frame.
func (d *driver) send(h header, frame []byte) {
	b := make([]byte, headerSize+len(frame))
	h.put(b)
	copy(b[headerSize:], frame)
	d.add(1, len(b), b)
}

// used returns how many chains of a ring were returned.
func (d *driver) used(ring int) uint16 { return uint16(d.word(ring*0x1000+usedAt).Load() >> 16) }

// await waits until n chains were returned.
func (d *driver) await(ring int, n uint16) {
	d.t.Helper()
	for end := time.Now().Add(patience); d.used(ring) < n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			d.t.Fatalf("%d chains of ring %d have come back, want %d", d.used(ring), ring, n)
		}
	}
}

// got returns what was written to a returned buffer.
func (d *driver) got(i int, at int) []byte {
	n := binary.LittleEndian.Uint32(d.ram[usedAt+4+8*i+4:])
	return d.ram[at : at+int(n)]
}

// pairOfPorts are two ports of a network.
func pairOfPorts(t *testing.T) (s *Switch, a, b *Port) {
	t.Helper()
	s = New(Config{})
	t.Cleanup(s.Close)
	plugOnly := func(nic, addr string) *Port {
		p, _ := plug(t, s, "red/other", nic, addr) // for its PortConfig
		c := p.PortConfig
		c.Network = "red/net"
		q, err := s.Plug(c)
		if err != nil {
			t.Fatal(err)
		}
		return q
	}
	return s, plugOnly("red/a", "10.1.0.1"), plugOnly("red/b", "10.1.0.2")
}

const allOffloads = vhostuser.NetMrgRxBuf | vhostuser.NetGuestCSum | vhostuser.NetGuestTSO4

// A large segment goes from guest to guest unchanged, into several buffers, or is split for a guest without support for
// it.
func TestGuestToGuest(t *testing.T) {
	for _, c := range []struct {
		name     string
		features uint64
		buffers  int
		frames   int
	}{
		{"offloads", allOffloads, 2, 1},
		{"large buffers", allOffloads &^ vhostuser.NetMrgRxBuf, 1, 1},
		{"no TSO", allOffloads &^ vhostuser.NetGuestTSO4, 3, 3},
		{"nothing", 0, 3, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, pa, pb := pairOfPorts(t)
			a, b := attachDriver(t, pa, vhostuser.NetCSum|vhostuser.NetHostTSO4), attachDriver(t, pb, c.features)
			size := 2048
			if c.frames == 1 && c.buffers == 1 {
				size = 65562
			}
			var at []int
			for range c.buffers {
				at = append(at, b.add(0, size, nil))
			}
			h, frame := segment(pa.MAC, pb.MAC, "10.1.0.1", "10.1.0.2", 3000, 1400)
			a.send(h, frame)
			a.await(1, 1)
			b.await(0, uint16(c.buffers))
			if c.frames > 1 {
				for i := range c.frames {
					got := b.got(i, at[i])
					checkSegment(t, got[headerSize:], 34, uint32(0xffff_ff00+1400*i))
				}
				return
			}
			var all []byte
			for i := range c.buffers {
				all = append(all, b.got(i, at[i])...)
			}
			if got := parseNetHeader(all); got.gso != gsoTCP4 || got.segment != 1400 || got.sumStart != 34 || !bytes.Equal(all[headerSize:], frame) {
				t.Errorf("got %+v and %d bytes, want %d", got, len(all)-headerSize, len(frame))
			}
			if n := binary.LittleEndian.Uint16(all[buffersAt:]); int(n) != c.buffers {
				t.Errorf("the header says %d buffers, want %d", n, c.buffers)
			}
		})
	}
}

// Frames wait, in order and up to a bound, for a guest without buffers.
func TestBacklog(t *testing.T) {
	_, pa, pb := pairOfPorts(t)
	a, b := attachDriver(t, pa, 0), attachDriver(t, pb, allOffloads)
	text := func(i int) []byte {
		return frameOf(pb.MAC, pa.MAC, "10.1.0.1", "10.1.0.2", protoUDP, datagram(1, uint16(i), nil))
	}
	const extra = entries
	for i := 0; i < mostWaiting+extra; i += entries {
		a.heap = 0x4000
		for j := range entries {
			a.send(header{}, text(i+j))
		}
		a.await(1, uint16(i+entries))
	}
	if n := pb.NoBuffer.Load(); n != extra {
		t.Errorf("%d were dropped, want %d", n, extra)
	}
	for i := 0; i < mostWaiting; i += entries {
		b.heap = 0x4000
		var at [entries]int
		for j := range entries {
			at[j] = b.add(0, 2048, nil)
		}
		b.await(0, uint16(i+entries))
		for j := range entries {
			if got := b.got(j, at[j]); !bytes.Equal(got[headerSize:], text(i+j)) {
				t.Fatalf("frame %d is %x", i+j, got)
			}
		}
	}
}

// A hostile guest's changes to its own rings do not keep others from talking.
func TestHostileGuest(t *testing.T) {
	for name, harm := range map[string]func(d *driver){
		"buffers without room":     func(d *driver) { d.add(0, 0, nil) },
		"buffers too short":        func(d *driver) { d.add(0, headerSize-1, nil) },
		"buffers to be read":       func(d *driver) { d.add(0, 2048, []byte{1}) },
		"buffers outside":          func(d *driver) { d.heap = ramSize - 8; d.add(0, 2048, nil) },
		"an index out of nowhere":  func(d *driver) { d.word(availAt).Store(0xffff << 16) },
		"frames without a header":  func(d *driver) { d.add(1, 5, []byte("short")) },
		"frames that are too long": func(d *driver) { d.add(1, 200<<10, make([]byte, 200<<10)) },
		"no more memory":           func(d *driver) { d.add(1, 0, []byte{}) },
	} {
		t.Run(name, func(t *testing.T) {
			s, pa, pb := pairOfPorts(t)
			c, atC := plug(t, s, "red/net", "red/c", "10.1.0.3")
			a, bad := attachDriver(t, pa, 0), attachDriver(t, pb, 0)
			harm(bad)
			bad.kick[1].Write([]byte{1, 0, 0, 0, 0, 0, 0, 0})
			a.send(header{}, frameOf(pb.MAC, pa.MAC, "10.1.0.1", "10.1.0.2", protoUDP, datagram(1, 2, nil)))
			a.send(header{}, frameOf(c.MAC, pa.MAC, "10.1.0.1", "10.1.0.3", protoUDP, datagram(1, 2, nil)))
			a.await(1, 2)
			if n := len(atC.caught()); n != 1 {
				t.Errorf("%d frames arrive at another, want 1", n)
			}
		})
	}
}

// TestTwoGuests: a guest that migrates on this host is connected twice. The copy gets the port when the original has stopped.
func TestTwoGuests(t *testing.T) {
	s, pa, pb := pairOfPorts(t)
	frame := frameOf(pb.MAC, pa.MAC, "10.1.0.1", "10.1.0.2", protoUDP, datagram(1, 2, nil))
	a, b := attachDriver(t, pa, 0), attachDriver(t, pb, vhostuser.NetMrgRxBuf)
	next := connectDriver(t, pb, vhostuser.NetMrgRxBuf)
	b.add(0, 2048, nil)
	a.send(header{}, frame)
	b.await(0, 1)

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	resume, err := s.Pause(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pb.FreezeGuest(func(int) uint32 { return 1 }); err == nil || !strings.Contains(err.Error(), "second virtual machine") {
		t.Errorf("two guests are frozen: %v", err)
	}
	resume()
	ends := socketPair(t)
	defer ends[0].Close()
	if err := pb.Serve(ends[1], new(vhostuser.Device), nil); err != errGuests {
		t.Errorf("a third guest: %v", err)
	}

	b.stop()
	if pb.Attached() {
		t.Error("a guest that has stopped is attached")
	}
	next.start()
	next.add(0, 2048, nil)
	a.send(header{}, frame)
	next.await(0, 1)
	b.socket.Close() // QEMU ends after its guest has left
	eventually(t, "the end of the original", func() bool { return len(pb.connected()) == 1 })
	next.add(0, 2048, nil)
	a.send(header{}, frame)
	next.await(0, 2)

	// A guest that starts while another one runs loses its connection, and only that.
	other := connectDriver(t, pb, 0)
	other.refused()
	next.add(0, 2048, nil)
	a.send(header{}, frame)
	next.await(0, 3)
}

// TestDetachAll: guests whose rings do not run are disconnected, too.
func TestDetachAll(t *testing.T) {
	_, pa, _ := pairOfPorts(t)
	attachDriver(t, pa, 0)
	connectDriver(t, pa, 0)
	pa.Detach()
	if pa.Attached() || len(pa.connected()) != 0 {
		t.Errorf("attached %v, %d are connected", pa.Attached(), len(pa.connected()))
	}
}
