package overlay

// firstSource is the first port from which a vrdma host sends: the range of RoCEv2 source ports (annex A17.9.2).
const firstSource = 0xc000

// A PortSet is a set of UDP ports from which a vrdma host sends. A nil set has every port, a set that is not nil none below
// 0xc000. It is a bitmap, because a receiver looks up each batch of packets.
type PortSet struct {
	bits [(1<<16 - firstSource) / 64]uint64
}

// NewPortSet returns the set of these ports; nil for an empty list.
func NewPortSet(list []uint16) *PortSet {
	if len(list) == 0 {
		return nil
	}
	s := &PortSet{}
	for _, p := range list {
		if p >= firstSource {
			s.bits[(p-firstSource)/64] |= 1 << (p % 64)
		}
	}
	return s
}

// Has reports whether the set has a port.
func (s *PortSet) Has(p uint16) bool {
	return s == nil || p >= firstSource && s.bits[(p-firstSource)/64]>>(p%64)&1 != 0
}

// Equal reports whether both have the same ports.
func (s *PortSet) Equal(o *PortSet) bool { return s == o || s != nil && o != nil && *s == *o }
