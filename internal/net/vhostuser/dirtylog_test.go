package vhostuser

import (
	"bytes"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const page = 1 << logPageBits

// marked are the pages in a log, and clears it.
func marked(log []byte) map[uint64]bool {
	pages := make(map[uint64]bool)
	for i := 0; i+4 <= len(log); i += 4 {
		for word, bit := pair(log[i:]).Swap(0), 0; bit < 32; bit++ {
			if word&(1<<bit) != 0 {
				pages[uint64(8*i+bit)] = true
			}
		}
	}
	return pages
}

// differences are the pages, by guest-physical address, in which two copies of memory at base differ.
func differences(a, b []byte, base uint64) (pages []uint64) {
	for at := 0; at < len(a); at += page {
		if !bytes.Equal(a[at:at+page], b[at:at+page]) {
			pages = append(pages, (base+uint64(at))>>logPageBits)
		}
	}
	return pages
}

func TestMarkPages(t *testing.T) {
	for _, c := range []struct {
		name     string
		guest, n uint64
		want     []uint64
	}{
		{"nothing", 0, 0, nil},
		{"a byte", 0, 1, []uint64{0}},
		{"the last byte of a page", page - 1, 1, []uint64{0}},
		{"over a border", page - 1, 2, []uint64{0, 1}},
		{"a page and a bit", 5 * page, page + 1, []uint64{5, 6}},
		{"over a word", 31*page + 1, page, []uint64{31, 32}},
		{"the last page", 127 * page, page, []uint64{127}},
		{"over the end", 127 * page, 5 * page, []uint64{127}},
		{"beyond the end", 128 * page, 1, nil},
		{"far beyond", math.MaxUint64, 1, nil},
		{"round the end of addresses", math.MaxUint64 - 7, 64, nil},
		{"everything", 1, math.MaxUint64, slices.Collect(func(yield func(uint64) bool) {
			for i := range uint64(128) {
				if !yield(i) {
					return
				}
			}
		})},
	} {
		whole := bytes.Repeat([]byte{0}, 16+2*8)
		log := whole[8 : 8+16 : 8+16]
		markPages(log, c.guest, c.n)
		got := marked(log)
		for _, p := range c.want {
			if !got[p] {
				t.Errorf("%s: page %d is not marked", c.name, p)
			}
		}
		if len(got) != len(c.want) {
			t.Errorf("%s: marked %v, want %v", c.name, got, c.want)
		}
		if !bytes.Equal(whole, make([]byte, len(whole))) {
			t.Errorf("%s: bits outside of the log are set", c.name)
		}
	}
	markPages(nil, 0, math.MaxUint64)
}

// TestRingLog: every page that a ring's user or the ring changes is in the log, and no page that it may not write.
func TestRingLog(t *testing.T) {
	const size, num, base = 1 << 20, 1024, 0x10_0000
	const descs, avails, useds, buffers = 0, 0x8000, 0xa000 - 4, 0x10000
	for _, events := range []bool{false, true} {
		rnd := rand.New(rand.NewPCG(1, 2))
		ram := make([]byte, size)
		m, err := NewMemory([]*Region{{bytes: ram, Guest: base}})
		if err != nil {
			t.Fatal(err)
		}
		log := make([]byte, (base+size)>>logPageBits/8)
		r := &Ring{conn: &Conn{device: &Device{}, wake: make(chan struct{}, 1)}, num: num, events: events, memory: m, started: true, enabled: true, usedLogged: true, usedLogAt: base + useds}
		r.desc, r.avail, r.used = ram[descs:descs+16*num], ram[avails:avails+4+2*num+4], ram[useds:useds+4+8*num+4]
		var c Chain
		for turn := range 400 {
			r.log = nil
			if turn%50 != 0 {
				r.log = log
			}
			// The driver makes chains available.
			allowed := map[uint64]bool{}
			for a := uint64(base + useds); a < base+useds+4+8*num+4; a++ {
				allowed[a>>logPageBits] = true
			}
			chains := 1 + rnd.IntN(8)
			for i := range chains {
				at, n := buffers+rnd.IntN(size-buffers-3*page), 1+rnd.IntN(2*page)
				for a := at; a < at+n+2*page; a += page {
					allowed[uint64(base+a)>>logPageBits] = true
				}
				allowed[uint64(base+at+n-1)>>logPageBits] = true
				putDesc(r.desc, 3*i, desc{base + uint64(at), uint32(n), descWrite | descNext, uint16(3*i + 1)})
				putDesc(r.desc, 3*i+1, desc{base + uint64(at+n), page, descWrite, 0})
				next := le.Uint16(r.avail[2:])
				le.PutUint16(r.avail[4+2*(int(next)%num):], uint16(3*i))
				le.PutUint16(r.avail[2:], next+1)
			}
			before := bytes.Clone(ram)
			r.Quiet()
			for range chains {
				if ok, err := r.Next(&c); !ok || err != nil {
					t.Fatal(ok, err)
				}
				n := rnd.IntN(Size(c.In) + 1)
				for left, i := n, 0; left > 0; i++ {
					k := min(left, len(c.In[i]))
					for j := range c.In[i][:k] {
						c.In[i][j]++
					}
					left -= k
				}
				r.Put(&c, n)
				if n > 0 && rnd.IntN(3) == 0 {
					c.In[0][0]++
					r.Wrote(c.InAt[0], 1)
				}
				if rnd.IntN(3) == 0 {
					r.Publish()
				}
			}
			r.Publish()
			r.Listen()
			got := marked(log)
			if r.log == nil {
				if len(got) > 0 {
					t.Fatalf("turn %d: pages %v are logged, and nobody wants that", turn, got)
				}
				continue
			}
			for _, p := range differences(before, ram, base) {
				if !got[p] {
					t.Fatalf("turn %d, event index %v: page %#x was written, and is not in the log", turn, events, p)
				}
			}
			for p := range got {
				if !allowed[p] {
					t.Fatalf("turn %d: page %#x is in the log", turn, p)
				}
			}
		}
	}
}

// A logFile is a front end's log.
type logFile struct {
	file *os.File
	bits []byte
}

func newLogFile(t *testing.T, size int) logFile {
	t.Helper()
	f := memfd(t, int64(size))
	b, err := unix.Mmap(number(f), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(b) })
	return logFile{f, b}
}

// ramLog is the size of a log of all memory of a front end.
const ramLog = (ramBase + ramSize) >> logPageBits / 8

// log makes the back end use a log.
func (f *frontEnd) log(l logFile) {
	f.t.Helper()
	if got := f.ask(setLogBase, 0, u64(uint64(len(l.bits)), 0), true, number(l.file)); le.Uint64(got) != 0 {
		f.t.Fatalf("SET_LOG_BASE: %x", got)
	}
}

// logging makes the back end log, or stop that, as QEMU does while the rings run.
func (f *frontEnd) logging(on bool, features uint64) {
	f.t.Helper()
	flag := uint32(0)
	if on {
		features |= LogAll
		flag = ringLogged
	}
	if got := f.ask(setFeatures, flagNeed, u64(features|protocolFeatures|Version1), true); le.Uint64(got) != 0 {
		f.t.Fatalf("SET_FEATURES: %x", got)
	}
	for i, r := range f.rings {
		body := append(u32(uint32(i), flag), u64(ramUser+r.desc, ramUser+r.used, ramUser+r.avail, ramBase+r.used)...)
		if got := f.ask(setVringAddr, flagNeed, body, true); le.Uint64(got) != 0 {
			f.t.Fatalf("SET_VRING_ADDR: %x", got)
		}
	}
}

// echoes sends n chains through a ring and returns the pages that the back end changed.
func (r *driverRing) echoes(n int) (changed []uint64) {
	f := r.f
	f.t.Helper()
	back := f.conn.rings[r.index]
	for i := range n {
		if i%50 == 0 {
			f.heap = 0x10000
		}
		text := bytes.Repeat([]byte{byte(r.added)}, 3000)
		out, b := f.alloc(len(text))
		in, answer := f.alloc(len(text))
		copy(b, text)
		clear(answer)
		head := uint16(2 * i % ringNum)
		r.write(int(head), desc{out, uint32(len(text)), descNext, head + 1})
		r.write(int(head)+1, desc{in, uint32(len(text)), descWrite, 0})
		back.mu.Lock()
		before := bytes.Clone(f.ram)
		r.add(head)
		le.PutUint16(before[r.avail+2:], r.added) // these are the driver's
		le.PutUint16(before[r.avail+4+2*uint64((r.added-1)%ringNum):], head)
		back.mu.Unlock()
		r.wait()
		back.mu.Lock()
		for _, p := range differences(before, f.ram, ramBase) {
			if p != (ramBase+r.avail)>>logPageBits { // the driver's, too
				changed = append(changed, p)
			}
		}
		back.mu.Unlock()
	}
	return changed
}

// holds fails if a page is not in the log.
func (l logFile) holds(t *testing.T, pages []uint64) {
	t.Helper()
	got := marked(l.bits)
	for _, p := range pages {
		if !got[p] {
			t.Errorf("page %#x was written, and is not in the log %v", p, got)
		}
	}
}

// TestLog: what is written is in the log while the front end wants it, also after an upgrade, and in the log of the moment.
func TestLog(t *testing.T) {
	for name, features := range map[string]uint64{"plain": 0, "event index": RingEventIdx} {
		t.Run(name, func(t *testing.T) {
			d := func() *Device { return echo(Device{Rings: 2, Queues: 1}) }
			f := connect(t, d())
			f.start(2, features)
			r := f.rings[1]
			first, second := newLogFile(t, ramLog), newLogFile(t, ramLog)
			nothing := func(l logFile, when string) {
				t.Helper()
				if changed := r.echoes(3); len(changed) < 3 {
					t.Fatalf("%s: %d pages were written", when, len(changed))
				}
				if got := marked(l.bits); len(got) != 0 {
					t.Errorf("%s: the log has %v", when, got)
				}
			}
			nothing(first, "before the log")
			f.logging(true, features) // and there is no log yet
			nothing(first, "without a log")
			f.log(first)
			first.holds(t, r.echoes(5))
			f.handOver(d())
			f.rings[0].echoes(1) // both back ends have made up for kicks
			marked(first.bits)
			first.holds(t, r.echoes(5))
			f.log(second)
			second.holds(t, r.echoes(5))
			if got := marked(first.bits); len(got) > 0 {
				t.Errorf("the log of before has %v", got)
			}
			f.table()
			second.holds(t, r.echoes(2))
			f.logging(false, features)
			marked(second.bits)
			nothing(second, "after the log")
			f.logging(true, features)
			second.holds(t, r.echoes(2))
			short := newLogFile(t, 8)
			f.log(short)
			nothing(second, "with a short log")
			if got := marked(short.bits); len(got) > 0 {
				t.Errorf("a short log has %v", got)
			}
		})
	}
}

// TestLogReplaced: logs are replaced while the ring runs. A page that was written is in one of them.
func TestLogReplaced(t *testing.T) {
	f := connect(t, echo(Device{Rings: 2, Queues: 1}))
	f.start(2, RingEventIdx)
	logs := []logFile{newLogFile(t, ramLog), newLogFile(t, ramLog)}
	f.log(logs[0])
	f.logging(true, RingEventIdx)
	for _, l := range logs {
		marked(l.bits)
	}
	done := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
				f.log(logs[i%2])
			}
		}
	})
	changed := f.rings[1].echoes(200)
	close(done)
	all.Wait()
	got := marked(logs[0].bits)
	for p := range marked(logs[1].bits) {
		got[p] = true
	}
	for _, p := range changed {
		if !got[p] {
			t.Errorf("page %#x was written, and is in no log", p)
		}
	}
}

// TestShorterLog: when the file of a log is truncated, only that front end's connection ends.
func TestShorterLog(t *testing.T) {
	faults := make(chan uintptr, 100)
	plain := echo(Device{Rings: 1, Queues: 1})
	f := connect(t, &Device{Rings: 1, Queues: 1, Kicked: func(r *Ring) {
		if at := Contain(func() {
			if !r.Begin() {
				return
			}
			defer r.End()
			r.Quiet()
		}); at != 0 {
			faults <- at
			return
		}
		plain.Kicked(r)
	}})
	f.start(1, RingEventIdx)
	l := newLogFile(t, ramLog)
	f.log(l)
	f.logging(true, RingEventIdx)
	if err := l.file.Truncate(0); err != nil {
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
	f.socket.Close()
	if err := f.ended(); err != nil {
		t.Error(err)
	}
}

// TestUnlogged: a device whose user writes to memory besides the rings offers no log, so QEMU does not migrate.
func TestUnlogged(t *testing.T) {
	f := connect(t, &Device{Rings: 1, Queues: 1, Unlogged: true})
	if got := le.Uint64(f.ask(getFeatures, 0, nil, true)); got&LogAll != 0 {
		t.Errorf("features %#x: a log is offered", got)
	}
	f.ask(setFeatures, 0, u64(LogAll), false)
	if err := f.ended(); err == nil {
		t.Error("a log is accepted")
	}
}

// A front end that has not accepted the protocol's LOG_SHMFD waits for no reply.
func TestLogWithoutReply(t *testing.T) {
	f := connect(t, &Device{Rings: 1, Queues: 1})
	f.ask(setLogBase, 0, u64(ramLog, 0), false, number(newLogFile(t, ramLog).file))
	f.ask(setLogFD, 0, nil, false, number(event(t)))
	f.ask(getFeatures, 0, nil, true) // the next reply is this one's
}

// TestStartsAndStops: the hooks are called for the first ring and the last.
func TestStartsAndStops(t *testing.T) {
	var mu sync.Mutex // guards calls
	var calls []string
	called := func(name string) {
		mu.Lock()
		defer mu.Unlock()
		calls = append(calls, name)
	}
	d := echo(Device{Rings: 2, Queues: 1})
	d.Starts = func(c *Conn) error {
		if c.Runs() {
			t.Error("it runs before it starts")
		}
		called("starts")
		return nil
	}
	d.Stops = func(*Conn) { called("stops") }
	f := connect(t, d)
	want := func(when string, names ...string) {
		t.Helper()
		f.ask(getFeatures, 0, nil, true) // all is done
		mu.Lock()
		defer mu.Unlock()
		if !slices.Equal(calls, names) {
			t.Errorf("%s: %q, want %q", when, calls, names)
		}
		calls = nil
	}
	f.ask(getVringBase, 0, u32(0, 0), true)
	want("nothing has started")
	f.start(2, 0)
	want("both rings have started", "starts")
	f.ask(getVringBase, 0, u32(0, 0), true)
	want("one ring has stopped")
	f.ask(getVringBase, 0, u32(1, 0), true)
	want("both have stopped", "stops")
	f.ask(getVringBase, 0, u32(1, 0), true)
	want("it stops again")
	f.start(2, 0, f.rings[0].added, f.rings[1].added)
	want("they start again", "starts")
	f.ask(resetDevice, 0, nil, false)
	want("a reset", "stops")
	f.start(2, 0, f.rings[0].added, f.rings[1].added)
	f.socket.Close()
	f.ended()
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(calls, []string{"starts", "stops"}) {
		t.Errorf("the front end has gone: %q", calls)
	}
}

// A device that may not start ends the connection.
func TestStartRefused(t *testing.T) {
	f := connect(t, &Device{Rings: 1, Queues: 1, Starts: func(*Conn) error { return os.ErrPermission }, Stops: func(*Conn) { t.Error("what has not started stops") }})
	f.ask(setFeatures, 0, u64(0), false)
	f.ask(setVringKick, 0, u64(0), false, number(event(t)))
	if err := f.ended(); err == nil {
		t.Error("it is served")
	}
}
