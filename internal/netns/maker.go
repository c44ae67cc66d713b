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

// NewMaker makes UDP sockets in s, of which it opens these many now.
func NewMaker(s *Space, udp4, udp6 int) (*Maker, error) {
	m := &Maker{space: s, spare: make(map[int][]int)}
	var kinds []Kind
	for range udp4 {
		kinds = append(kinds, UDP4)
	}
	for range udp6 {
		kinds = append(kinds, UDP6)
	}
	fds, err := s.Open(kinds)
	if err != nil {
		return nil, err
	}
	m.spare[unix.AF_INET], m.spare[unix.AF_INET6] = fds[:udp4:udp4], fds[udp4:]
	return m, nil
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
