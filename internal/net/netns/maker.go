package netns

import (
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// A Maker makes sockets in a namespace one by one, of which it opens many at once. Any goroutine may use it.
//
// Where a helper makes them (Space.Helped), which is a process and takes its time, the next ones are made before they are wanted: programs join
// groups on the daemon's loop, and everybody waits for that. Who joins so many at once that none are left has it wait for the helper; then the helper
// makes twice as many at a time from then on.
type Maker struct {
	open   func([]Kind) ([]int, error)
	helped func() bool

	filling sync.WaitGroup
	mu      sync.Mutex
	ipv4    stock // guarded by mu, as what follows
	ipv6    stock
	filled  sync.Cond // somebody has
	closed  bool
}

// A stock is the sockets of a family that are there before they are wanted.
type stock struct {
	kind   Kind
	spare  []int
	batch  int  // how many are made at a time
	filler bool // somebody fills it
}

const (
	// Ahead is how many there are to be before they are wanted: after Reserve, and once a helper has made some.
	Ahead = 4
	// firstBatch is how many are made at a time at first, and lastBatch how many at most.
	firstBatch = 8
	lastBatch  = 64
)

// NewMaker makes UDP sockets in s.
func NewMaker(s *Space) *Maker { return newMaker(s.Open, s.Helped) }

func newMaker(open func([]Kind) ([]int, error), helped func() bool) *Maker {
	m := &Maker{open: open, helped: helped, ipv4: stock{kind: UDP4, batch: firstBatch}, ipv6: stock{kind: UDP6, batch: firstBatch}}
	m.filled.L = &m.mu
	return m
}

// Reserve has so many be there, at least, before somebody needs them who cannot wait. Others are given sockets meanwhile.
func (m *Maker) Reserve(udp4, udp6 int) error {
	m.mu.Lock()
	udp4 -= len(m.ipv4.spare)
	udp6 -= len(m.ipv6.spare)
	m.mu.Unlock()
	for udp4 > 0 || udp6 > 0 {
		now4 := min(max(udp4, 0), most)
		now6 := min(max(udp6, 0), most-now4)
		udp4, udp6 = udp4-now4, udp6-now6
		kinds := make([]Kind, now4+now6)
		for i := range kinds {
			if kinds[i] = UDP4; i >= now4 {
				kinds[i] = UDP6
			}
		}
		fds, err := m.open(kinds)
		if err != nil {
			return err
		}
		m.mu.Lock()
		m.ipv4.spare = append(m.ipv4.spare, fds[:now4]...)
		m.ipv6.spare = append(m.ipv6.spare, fds[now4:]...)
		m.mu.Unlock()
	}
	return nil
}

// Socket returns one more.
func (m *Maker) Socket(family int) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	st := &m.ipv4
	if family == unix.AF_INET6 {
		st = &m.ipv6
	}
	dry := len(st.spare) == 0 // more were wanted at once than there are ahead
	for len(st.spare) == 0 && st.filler {
		m.filled.Wait()
	}
	if m.closed {
		return -1, unix.EBADF
	}
	if len(st.spare) == 0 {
		var err error
		if st.spare, err = m.open(st.kinds()); err != nil {
			return -1, err
		}
	}
	fd := st.spare[0]
	st.spare = st.spare[1:]
	if !m.helped() {
		return fd, nil
	}
	if dry {
		st.batch = min(2*st.batch, lastBatch)
	}
	if len(st.spare) < Ahead && !st.filler {
		st.filler = true
		m.filling.Go(func() { m.fill(st) })
	}
	return fd, nil
}

// kinds are those of a batch.
func (st *stock) kinds() []Kind { return slices.Repeat([]Kind{st.kind}, st.batch) }

// fill makes a batch. What fails is told to who wants one and finds none.
func (m *Maker) fill(st *stock) {
	m.mu.Lock()
	kinds := st.kinds()
	m.mu.Unlock()
	fds, err := m.open(kinds)
	m.mu.Lock()
	defer m.mu.Unlock()
	st.filler = false
	if err == nil {
		st.spare = append(st.spare, fds...)
	}
	m.filled.Broadcast()
}

// Close closes those that nobody took, and waits for who makes more.
func (m *Maker) Close() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.filling.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, st := range []*stock{&m.ipv4, &m.ipv6} {
		closeAll(st.spare)
		st.spare = nil
	}
}
