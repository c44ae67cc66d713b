package netns

import (
	"sync"

	"golang.org/x/sys/unix"
)

// A Maker makes sockets in a namespace one by one, of which it opens many at once. Any goroutine may use it.
type Maker struct {
	space *Space

	mu    sync.Mutex
	spare map[int][]int // guarded by mu; by family
}

// NewMaker makes UDP sockets in s.
func NewMaker(s *Space) *Maker { return &Maker{space: s, spare: make(map[int][]int)} }

// Reserve has so many be there, at least, before somebody needs them who cannot wait. Others are given sockets meanwhile.
func (m *Maker) Reserve(udp4, udp6 int) error {
	m.mu.Lock()
	udp4 -= len(m.spare[unix.AF_INET])
	udp6 -= len(m.spare[unix.AF_INET6])
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
		fds, err := m.space.Open(kinds)
		if err != nil {
			return err
		}
		m.mu.Lock()
		m.spare[unix.AF_INET] = append(m.spare[unix.AF_INET], fds[:now4]...)
		m.spare[unix.AF_INET6] = append(m.spare[unix.AF_INET6], fds[now4:]...)
		m.mu.Unlock()
	}
	return nil
}

// Socket is one more.
func (m *Maker) Socket(family int) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := m.spare[family]
	if len(list) == 0 {
		k := UDP4
		if family == unix.AF_INET6 {
			k = UDP6
		}
		var err error
		if list, err = m.space.Open([]Kind{k, k, k, k, k, k, k, k}); err != nil {
			return -1, err
		}
	}
	m.spare[family] = list[1:]
	return list[0], nil
}

// Close closes those that nobody took.
func (m *Maker) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, list := range m.spare {
		closeAll(list)
	}
	clear(m.spare)
}
