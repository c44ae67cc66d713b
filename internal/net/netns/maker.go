package netns

import (
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// A Maker creates sockets in a namespace one by one from a stock that it fills in batches. Any goroutine may use it.
//
// If a helper process creates the sockets (Space.Helped), which is slow, the Maker creates the next ones in advance: programs join
// multicast groups on the daemon's loop, which must not wait. If the stock is empty, the caller waits for the helper, and the Maker
// doubles the batch size.
type Maker struct {
	open   func([]Kind) ([]int, error)
	helped func() bool

	filling sync.WaitGroup
	mu      sync.Mutex
	ipv4    stock // guarded by mu, like the following fields
	ipv6    stock
	filled  sync.Cond // a stock has been filled
	closed  bool
}

// A stock has sockets of one family that were created in advance.
type stock struct {
	kind   Kind
	spare  []int
	batch  int  // number of sockets created at a time
	filler bool // a goroutine is filling it
}

const (
	// Ahead is the number of sockets to keep in stock, after Reserve or once a helper has been used.
	Ahead = 4
	// firstBatch is the initial batch size, and lastBatch the largest.
	firstBatch = 8
	lastBatch  = 64
)

// NewMaker returns a Maker of UDP sockets in s.
func NewMaker(s *Space) *Maker { return newMaker(s.Open, s.Helped) }

func newMaker(open func([]Kind) ([]int, error), helped func() bool) *Maker {
	m := &Maker{open: open, helped: helped, ipv4: stock{kind: UDP4, batch: firstBatch}, ipv6: stock{kind: UDP6, batch: firstBatch}}
	m.filled.L = &m.mu
	return m
}

// Reserve fills the stocks to at least these numbers, for callers that cannot wait later. Other callers can take sockets meanwhile.
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

// Socket returns a new socket.
func (m *Maker) Socket(family int) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	st := &m.ipv4
	if family == unix.AF_INET6 {
		st = &m.ipv6
	}
	dry := len(st.spare) == 0 // more sockets were needed at once than in stock
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

// kinds returns the kinds of a batch.
func (st *stock) kinds() []Kind { return slices.Repeat([]Kind{st.kind}, st.batch) }

// fill creates a batch. A caller that finds the stock empty gets the error.
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

// Close closes unused sockets and waits for a running fill.
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
