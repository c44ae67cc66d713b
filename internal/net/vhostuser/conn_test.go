package vhostuser

import (
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/testkit/leak"
)

func TestFrontEndErrors(t *testing.T) {
	zero, err := os.OpenFile("/dev/zero", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer zero.Close()
	small, large := memfd(t, 4096), memfd(t, 3<<40)
	status, err := os.Open("/proc/self/status") // on a file system that is not memory
	if err != nil {
		t.Fatal(err)
	}
	defer status.Close()
	region := func(v ...uint64) []byte { return append(u32(1, 0), u64(v...)...) }
	for _, c := range []struct {
		name, want string
		send       func(f *frontEnd)
	}{
		{"unknown", "request 99 is of no feature", func(f *frontEnd) { f.ask(99, 0, nil, false) }},
		{"reply", "came as a reply", func(f *frontEnd) { f.ask(setOwner, flagReply, nil, false) }},
		{"version", "version 3", func(f *frontEnd) { f.ask(setOwner, 2, nil, false) }},
		{"short", "has 7 bytes", func(f *frontEnd) { f.ask(setFeatures, 0, make([]byte, 7), false) }},
		{"long", "bytes: it has", func(f *frontEnd) { f.ask(setMemTable, 0, make([]byte, maxPayload+1), false) }},
		{"feature", "were not offered", func(f *frontEnd) { f.ask(setFeatures, 0, u64(1<<34), false) }},
		{"protocol feature", "were not offered", func(f *frontEnd) { f.ask(setProtocolFeatures, 0, u64(1<<40), false) }},
		{"ring", "virtqueue 7 is none of 2", func(f *frontEnd) { f.ask(setVringNum, 0, u32(7, 16), false) }},
		{"ring size", "power of two", func(f *frontEnd) { f.ask(setVringNum, 0, u32(0, 17), false) }},
		{"ring size 0", "power of two", func(f *frontEnd) { f.ask(setVringNum, 0, u32(0, 0), false) }},
		{"kick without memory", "does not lie in guest memory", func(f *frontEnd) { f.ask(setVringKick, 0, u64(0), false, number(event(t))) }},
		{"kick is a file", "no eventfd", func(f *frontEnd) { f.ask(setVringKick, 0, u64(0), false, int(zero.Fd())) }},
		{"call is a file", "no eventfd", func(f *frontEnd) { f.ask(setVringCall, 0, u64(0), false, int(zero.Fd())) }},
		{"no descriptor", "descriptor is missing", func(f *frontEnd) { f.ask(setVringCall, 0, u64(0), false) }},
		{"a ring too many", "virtqueue 2 is none", func(f *frontEnd) { f.ask(setVringCall, 0, u64(2), false, number(event(t))) }},
		{"descriptors nobody wants", "came with 1 descriptors", func(f *frontEnd) { f.ask(setOwner, 0, nil, false, int(zero.Fd())) }},
		{"memory without descriptor", "with 0 descriptors", func(f *frontEnd) { f.ask(setMemTable, 0, region(0, 4096, 0, 0), false) }},
		{"memory beyond its file", "in a file of", func(f *frontEnd) { f.ask(setMemTable, 0, region(0, 8192, 0, 0), false, int(small.Fd())) }},
		{"memory at an offset beyond", "in a file of", func(f *frontEnd) { f.ask(setMemTable, 0, region(0, 4096, 0, 1), false, int(small.Fd())) }},
		{"memory that wraps", "cannot be", func(f *frontEnd) { f.ask(setMemTable, 0, region(^uint64(0), 4096, 0, 0), false, int(small.Fd())) }},
		{"memory of a device", "tmpfs or hugetlbfs", func(f *frontEnd) { f.ask(setMemTable, 0, region(0, 4096, 0, 0), false, int(zero.Fd())) }},
		{"memory of another file system", "tmpfs or hugetlbfs", func(f *frontEnd) { f.ask(setMemTable, 0, region(0, 4096, 0, 0), false, int(status.Fd())) }},
		{"memory too large", "cannot be", func(f *frontEnd) { f.ask(setMemTable, 0, region(0, 1<<42, 0, 1), false, int(large.Fd())) }},
		{"too much memory", "more than 4 TiB", func(f *frontEnd) {
			body := append(append(u32(2, 0), u64(0, 3<<40, 0, 0)...), u64(3<<40, 3<<40, 3<<40, 0)...)
			f.ask(setMemTable, 0, body, false, int(large.Fd()), int(large.Fd()))
		}},
		{"a ring that grows out of memory", "does not lie in guest memory", func(f *frontEnd) {
			f.ask(setProtocolFeatures, 0, u64(offered), false)
			f.table()
			f.ask(setFeatures, 0, u64(RingEventIdx), false)
			f.ask(setVringNum, 0, u32(0, 2), false)
			const at = ramUser + ramSize - 0x1000
			f.ask(setVringAddr, 0, append(u32(0, 0), u64(at, at+0x100, at+0x200, 0)...), false)
			f.ask(setVringNum, 0, u32(0, 32768), false)
			f.ask(setVringKick, 0, u64(0), false, number(event(t)))
		}},
		{"empty memory", "cannot be", func(f *frontEnd) { f.ask(setMemTable, 0, region(0, 0, 0, 0), false, int(small.Fd())) }},
		{"memory that overlaps", "overlap", func(f *frontEnd) {
			body := append(append(u32(2, 0), u64(0, 4096, 0, 0)...), u64(4095, 4096, 1<<20, 0)...)
			f.ask(setMemTable, 0, body, false, int(small.Fd()), int(small.Fd()))
		}},
		{"more memory than said", "regions in", func(f *frontEnd) { f.ask(setMemTable, 0, u32(8, 0), false) }},
		{"memory of two files", "overlap", func(f *frontEnd) {
			f.ask(addMemReg, 0, u64(0, 0, 4096, 0, 0), false, int(small.Fd()))
			f.ask(addMemReg, 0, u64(0, 0, 4096, 0, 0), false, int(large.Fd()))
		}},
		{"memory that is not there", "no region", func(f *frontEnd) { f.ask(remMemReg, 0, u64(0, 0, 4096, 0, 0), false) }},
		{"log without descriptor", "without its descriptor", func(f *frontEnd) { f.ask(setLogBase, 0, u64(4096, 0), false) }},
		{"log of no size", "cannot be", func(f *frontEnd) { f.ask(setLogBase, 0, u64(0, 0), false, int(small.Fd())) }},
		{"log of odd size", "multiples of 8", func(f *frontEnd) { f.ask(setLogBase, 0, u64(12, 0), false, int(small.Fd())) }},
		{"log at an odd offset", "multiples of 8", func(f *frontEnd) { f.ask(setLogBase, 0, u64(8, 4), false, int(small.Fd())) }},
		{"log beyond its file", "in a file of", func(f *frontEnd) { f.ask(setLogBase, 0, u64(4096, 8), false, int(small.Fd())) }},
		{"log that wraps", "cannot be", func(f *frontEnd) { f.ask(setLogBase, 0, u64(4096, ^uint64(7)), false, int(small.Fd())) }},
		{"log too large", "bytes at most", func(f *frontEnd) { f.ask(setLogBase, 0, u64(maxLog+8, 0), false, int(large.Fd())) }},
		{"log of a device", "tmpfs or hugetlbfs", func(f *frontEnd) { f.ask(setLogBase, 0, u64(4096, 0), false, int(zero.Fd())) }},
		{"MTU", "host_mtu=1450", func(f *frontEnd) { f.ask(netSetMTU, 0, u64(1500), false) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := connect(t, echo(Device{Rings: 2, Queues: 1, MTU: 1450}))
			before := leak.Descriptors(t)
			c.send(f)
			if err := f.ended(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v: want %q", err, c.want)
			}
			if after := leak.Descriptors(t); after >= before+2 { // its own socket is closed; a test may have opened one
				t.Errorf("%d descriptors are open: there were %d", after, before)
			}
		})
	}
}

// Regions are added and removed, and a region in use stays readable.
func TestMemory(t *testing.T) {
	f := connect(t, &Device{Rings: 1, Queues: 1})
	f.ask(setProtocolFeatures, 0, u64(offered), false)
	f.table()
	more := memfd(t, 8192)
	if _, err := more.WriteAt([]byte("more"), 4096); err != nil {
		t.Fatal(err)
	}
	add := append(u64(0), u64(ramBase+ramSize, 4096, 0, 4096)...)
	if got := f.ask(addMemReg, flagNeed, add, true, int(more.Fd())); le.Uint64(got) != 0 {
		t.Fatal("refused")
	}
	// QEMU announces it, and its end, once for each pair of queues.
	if got := f.ask(addMemReg, flagNeed, add, true, int(more.Fd())); le.Uint64(got) != 0 {
		t.Fatal("refused the second time")
	}
	if got := f.ask(remMemReg, flagNeed, add, true); le.Uint64(got) != 0 {
		t.Fatal("refused")
	}
	m := f.conn.Memory()
	copy(f.ram[ramSize-4:], "last")
	if b := m.Slice(ramBase+ramSize-4, 8); string(b) != "last" {
		t.Errorf("%q at the end of the first region", b)
	}
	region := m.Region(ramBase + ramSize)
	region.Hold()
	m.Release()
	if got := f.ask(remMemReg, flagNeed, add, true); le.Uint64(got) != 0 {
		t.Fatal("refused")
	}
	m = f.conn.Memory()
	if m.Slice(ramBase+ramSize, 1) != nil || m.Region(ramBase-1) != nil {
		t.Error("there is memory where none is")
	}
	m.Release()
	if string(region.Bytes()[:4]) != "more" {
		t.Errorf("%q", region.Bytes()[:4])
	}
	region.Release()
}

// TestShorterMemory: when the file of a front end's memory is truncated, only that front end's connection ends.
func TestShorterMemory(t *testing.T) {
	var f *frontEnd
	faults := make(chan uintptr, 100)
	f = connect(t, &Device{Rings: 1, Queues: 1, Kicked: func(r *Ring) {
		if at := Contain(func() {
			if !r.Begin() {
				return
			}
			defer r.End()
			var c Chain
			r.Next(&c)
			r.Listen()
		}); at != 0 {
			faults <- at
		}
	}})
	f.start(1, RingEventIdx)
	if err := f.file.Truncate(0); err != nil {
		t.Fatal(err)
	}
	f.rings[0].kick.Write(one)
	select {
	case at := <-faults:
		if !f.conn.Owns(at) {
			t.Errorf("%#x is nobody's", at)
		}
	case <-time.After(wait):
		t.Fatal("no fault")
	}
	f.ask(setVringKick, 0, u64(0), false, number(f.rings[0].kick))
	if err := f.ended(); err == nil || !strings.Contains(err.Error(), "cannot be read") {
		t.Errorf("got %v", err)
	}
}

// A front end whose eventfds block delays only itself.
func TestBlockingEvents(t *testing.T) {
	var held atomic.Int32
	f := connect(t, echo(Device{Rings: 1, Queues: 1, Held: &held}))
	f.start(1, 0)
	r := f.rings[0]
	fillEvent(t, r.call)
	if err := unix.SetNonblock(number(r.kick), false); err != nil {
		t.Fatal(err)
	}
	out, _ := f.alloc(1)
	r.write(0, desc{out, 1, 0, 0})
	for i := range uint16(4) {
		r.add(0)
		for deadline := time.Now().Add(wait); load16(f.ram[r.used:], 2) != i+1; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the ring stands still")
			}
		}
	}
	f.conn.Close()
	f.ended()
	if n := held.Load(); n != 0 {
		t.Errorf("%d goroutines are left", n)
	}
}

// A ring whose kicks block can still be enabled.
func TestBlockingKick(t *testing.T) {
	kicked, leave := make(chan struct{}, 100), make(chan struct{})
	f := connect(t, &Device{Rings: 1, Queues: 1, Kicked: func(*Ring) {
		kicked <- struct{}{}
		<-leave
	}})
	f.t.Cleanup(func() { close(leave) })
	f.start(1, 0)
	<-kicked
	// No reader is left.
	fillEvent(t, f.rings[0].kick)
	for range 3 {
		for on := range uint32(2) {
			if got := f.ask(setVringEnable, flagNeed, u32(0, on), true); le.Uint64(got) != 0 {
				t.Fatalf("%x", got)
			}
		}
	}
}

// When front ends delay too much, the next one is refused.
func TestHeldUp(t *testing.T) {
	var held atomic.Int32
	for n, want := range map[int32]bool{mostHeld: true, mostHeld + 1: false} {
		held.Store(n)
		_, other := socketPair(t)
		ready := false
		err := Serve(other, &Device{Rings: 1, Queues: 1, Held: &held}, func(c *Conn) {
			ready = true
			held.Store(0) // they end
			c.Close()
		})
		if ready != want || err == nil != want {
			t.Errorf("%d are held up: served %v, %v", n, ready, err)
		}
	}
}

// fillEvent makes an eventfd full, and blocking.
func fillEvent(t *testing.T, e *os.File) {
	t.Helper()
	full := []byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	for { // the old count and this value do not fit together
		var b [8]byte
		unix.Read(number(e), b[:])
		if _, err := unix.Write(number(e), full); err == nil {
			break
		}
	}
	if err := unix.SetNonblock(number(e), false); err != nil {
		t.Fatal(err)
	}
}

// Only files on tmpfs or hugetlbfs count as memory.
func TestIsRAM(t *testing.T) {
	if !isRAM(number(memfd(t, 4096))) {
		t.Error("a memfd is none")
	}
	if fd, err := unix.MemfdCreate("huge", unix.MFD_CLOEXEC|unix.MFD_HUGETLB); err == nil { // otherwise the kernel has no huge pages
		defer unix.Close(fd)
		if !isRAM(fd) {
			t.Error("a memfd of huge pages is none")
		}
	}
	if f, err := os.CreateTemp("/dev/shm", "vhostuser"); err == nil {
		defer os.Remove(f.Name())
		defer f.Close()
		var fs unix.Statfs_t
		if err := unix.Fstatfs(number(f), &fs); err == nil && fs.Type == unix.TMPFS_MAGIC && !isRAM(number(f)) {
			t.Error("a file on tmpfs is none")
		}
	}
	for _, name := range []string{"/proc/self/status", "/dev/zero", "/proc/self", "/sys"} {
		fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if isRAM(fd) {
			t.Errorf("%s is", name)
		}
	}
}

// TestMapped: removed memory that is still in use counts, and so do other connections: all mappings have a common
// bound. In the end nothing is mapped.
func TestMapped(t *testing.T) {
	const limit = 8 << 40
	var mapped atomic.Uint64
	d := func() *Device {
		return &Device{Rings: 1, Queues: 1, Map: func(size uint64) (func(), error) {
			if mapped.Add(size) > limit {
				mapped.Add(-size)
				return nil, errors.New("enough")
			}
			return func() { mapped.Add(-size) }, nil
		}}
	}
	large := memfd(t, 3<<40) // and empty
	table := append(u32(1, 0), u64(0, 3<<40, 0, 0)...)
	first := connect(t, d())
	first.ask(setProtocolFeatures, 0, u64(offered), false)
	first.ask(setMemTable, flagNeed, table, true, int(large.Fd()))
	held := first.conn.Memory()
	first.ask(setMemTable, flagNeed, table, true, int(large.Fd()))
	if n := mapped.Load(); n != 6<<40 {
		t.Errorf("%d TiB are counted, want 6", n>>40)
	}
	second := connect(t, d())
	second.ask(setMemTable, 0, table, false, int(large.Fd()))
	if err := second.ended(); err == nil || !strings.Contains(err.Error(), "enough") {
		t.Errorf("a second front end is refused with %v", err)
	}
	held.Release()
	if n := mapped.Load(); n != 3<<40 {
		t.Errorf("%d TiB are counted, want 3", n>>40)
	}
	first.socket.Close()
	first.ended()
	if n := mapped.Load(); n != 0 {
		t.Errorf("%d bytes are left", n)
	}
}
