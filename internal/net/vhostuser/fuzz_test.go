package vhostuser

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// For any bytes at the socket the back end answers or ends.
func FuzzRequests(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0})
	f.Add(append([]byte{5, 0, 0, 0, 9, 0, 0, 0, 40, 0, 0, 0}, make([]byte, 40)...))
	f.Add([]byte{12, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0})
	// A ring that grows after it was placed at the end of memory.
	var grows []byte
	for _, m := range []struct {
		request Request
		body    []byte
	}{
		{setMemTable, append(u32(1, 0), u64(0, 1<<16, 0, 0)...)}, {setFeatures, u64(RingEventIdx)}, {setVringNum, u32(0, 2)},
		{setVringAddr, append(u32(0, 0), u64(0xf000, 0xf100, 0xf200, 0)...)}, {setVringNum, u32(0, 32768)}, {setVringKick, u64(0)}, {setVringEnable, u32(0, 1)}, {sendRARP, u64(0)},
	} {
		grows = append(append(grows, u32(uint32(m.request), version, uint32(len(m.body)))...), m.body...)
	}
	f.Add(grows)
	// A log that is shorter than the memory, and replaced while the ring runs. The used ring is said to be elsewhere.
	var logged []byte
	for _, m := range []struct {
		request Request
		body    []byte
	}{
		{setMemTable, append(u32(1, 0), u64(0, 1<<16, 0, 0)...)}, {setLogBase, u64(8, 0)}, {setFeatures, u64(RingEventIdx | LogAll)}, {setVringNum, u32(0, 2)},
		{setVringAddr, append(u32(0, ringLogged), u64(0xf000, 0xf100, 0xf200, 1<<63)...)}, {setVringKick, u64(0)}, {setVringEnable, u32(0, 1)}, {sendRARP, u64(0)},
		{setLogBase, u64(16, 8)}, {sendRARP, u64(0)}, {setFeatures, u64(RingEventIdx)}, {sendRARP, u64(0)},
	} {
		logged = append(append(logged, u32(uint32(m.request), version, uint32(len(m.body)))...), m.body...)
	}
	f.Add(logged)
	f.Fuzz(func(t *testing.T, b []byte) {
		socket, other := socketPair(t)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			d := echo(Device{Rings: 2, Queues: 1})
			Serve(other, d, func(c *Conn) {
				// Kicks arrive eventually, and with SEND_RARP at once.
				d.Announce = func([6]byte) {
					for _, r := range c.Rings() {
						d.Kicked(r)
					}
				}
			})
		}()
		ram, kick := memfd(t, 1<<16), event(t)
		socket.SetDeadline(time.Now().Add(wait))
		// Every message has the descriptors that its type allows.
		for len(b) >= headerSize {
			n := min(headerSize+int(le.Uint32(b[8:])&0xfff), len(b))
			var fds []int
			switch Request(le.Uint32(b)) {
			case setMemTable, addMemReg, setLogBase:
				fds = []int{number(ram)}
			case setVringKick, setVringCall:
				fds = []int{number(kick)}
			}
			if _, _, err := socket.WriteMsgUnix(b[:n], unix.UnixRights(fds...), nil); err != nil {
				break
			}
			b = b[n:]
		}
		socket.CloseWrite()
		select {
		case <-ended:
		case <-time.After(wait):
			t.Fatal("it does not end")
		}
	})
}

// For any content of a ring, taking from it ends, and returns only the guest's memory.
func FuzzRing(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0}, uint16(1))
	f.Add(make([]byte, 512), uint16(16))
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0, 0, 4, 0, 0, 0}, uint16(3))
	f.Fuzz(func(t *testing.T, content []byte, available uint16) {
		const size = 1 << 12
		ram := make([]byte, size)
		copy(ram, content)
		region := &Region{bytes: ram}
		m, err := NewMemory([]*Region{region})
		if err != nil {
			t.Fatal(err)
		}
		r := &Ring{conn: &Conn{device: &Device{}, wake: make(chan struct{}, 1)}, num: 16, events: available&1 != 0}
		r.desc, r.avail, r.used, r.memory, r.started, r.enabled = ram[:256], ram[256:512], ram[512:1024], m, true, true
		le.PutUint16(r.avail[2:], available)
		log := make([]byte, 24) // the one of the ring is in the middle
		if available&2 != 0 {
			r.log, r.usedLogged, r.usedLogAt = log[8:16:16], available&4 != 0, -uint64(available)<<10
		}
		var c Chain
		for range 1 << 16 {
			r.Mark()
			ok, err := r.Next(&c)
			if !ok || err != nil {
				break
			}
			if len(c.Out)+len(c.In) > 16+1 {
				t.Fatalf("%d buffers in a chain", len(c.Out)+len(c.In))
			}
			for _, b := range append(c.Out, c.In...) {
				if len(b) == 0 || address(b) < address(ram) || address(b)+uintptr(len(b)) > address(ram)+size {
					t.Fatal("a buffer is not the guest's")
				}
			}
			r.Put(&c, Size(c.In))
			if len(c.In) > 0 {
				r.Wrote(c.InAt[0], len(c.In[0]))
			}
		}
		r.Publish()
		r.Quiet()
		r.Listen()
		if le.Uint64(log) != 0 || le.Uint64(log[16:]) != 0 {
			t.Fatalf("outside of the log is %x", log)
		}
	})
}

func TestNoAllocations(t *testing.T) {
	ram := make([]byte, 1<<16)
	m, err := NewMemory([]*Region{{bytes: ram}})
	if err != nil {
		t.Fatal(err)
	}
	r := &Ring{conn: &Conn{device: &Device{}, wake: make(chan struct{}, 1)}, num: 16, events: true}
	r.desc, r.avail, r.used, r.memory, r.started, r.enabled = ram[:256], ram[256:512], ram[512:1024], m, true, true
	putDesc(r.desc, 0, desc{1024, 100, descNext, 1})
	putDesc(r.desc, 1, desc{2048, 100, descWrite, 0})
	var c Chain
	n := uint16(0)
	for _, r.log = range [][]byte{nil, make([]byte, 8)} {
		r.usedLogged = r.log != nil
		if got := testing.AllocsPerRun(100, func() {
			n++
			le.PutUint16(r.avail[2:], n)
			if !r.Begin() {
				t.Fatal("not begun")
			}
			if ok, err := r.Next(&c); !ok || err != nil {
				t.Fatal(ok, err)
			}
			r.Put(&c, 100)
			r.Publish()
			r.End()
		}); got != 0 {
			t.Errorf("%v allocations", got)
		}
	}
}
