package nic

import (
	"crypto/rand"
	"encoding/binary"
	"iter"
	"maps"
	"sync/atomic"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/ib"
)

// GIDEntry is a row of the port's GID table.
type GIDEntry struct {
	GID    ib.GID
	NetDev string
}

// Config is what a NIC is born with.
type Config struct {
	Name     string
	NodeGUID uint64
	GIDs     []GIDEntry
	// MTU is the port's active MTU, numbered as enum ib_mtu; 0: 4096 bytes.
	MTU    uint8
	Limits Limits
	// Patience is how long a client's memory may take; 0: a few seconds.
	Patience ib.Time
	// Random supplies queue pair numbers and keys; nil: the system's.
	Random func() uint32
	// Denied is called on the loop for each refusal of the Guard, up to denialsPerSecond; may be nil.
	Denied func(Denial)
	// Capped is called on the loop when the NIC has reached a cap, with its name; may be nil.
	Capped func(limit string)
}

// NIC is one virtual device.
type NIC struct {
	Config

	sessions      map[*Session]struct{}
	qps           map[uint32]*QP   // by number
	keys          map[uint32]keyed // MRs and MWs, by key >> 8
	mcast         map[ib.GID][]*QP
	groupAccounts map[ib.GID]*budget.Account // of the groups in mcast, held

	retired Counters // of queue pairs that are gone
	serial  uint32   // of the object made last
	routes  uint32   // see Reroute
	rules   rules    // see guard.go

	face atomic.Pointer[Face] // see port.go

	tally tally // see meter.go

	faults faults // see fault.go

	suspended bool // see SetSuspended
}

// Serial returns a number for a new object, unique in the NIC. Tools show it, because handles are
// unique only in a session.
func (n *NIC) Serial() uint32 {
	n.serial++
	return n.serial
}

// keyed is what a memory key names.
type keyed interface{ key() uint32 }

// New makes a NIC without sessions.
func New(c Config) *NIC {
	if c.Limits == (Limits{}) {
		c.Limits = DefaultLimits
	}
	if c.MTU == 0 {
		c.MTU = 5
	}
	if c.Random == nil {
		c.Random = systemRandom
	}
	n := &NIC{
		Config:        c,
		sessions:      make(map[*Session]struct{}),
		qps:           make(map[uint32]*QP),
		keys:          make(map[uint32]keyed),
		mcast:         make(map[ib.GID][]*QP),
		groupAccounts: make(map[ib.GID]*budget.Account),
		routes:        1,
		rules:         rules{number: 1},
	}
	n.face.Store(&Face{GIDs: c.GIDs, MTU: c.MTU})
	return n
}

func systemRandom() uint32 {
	var b [4]byte
	rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	return binary.NativeEndian.Uint32(b[:])
}

// newQPN picks an unused random number. 0 and 1 are the management queue pairs,
// 0xffffff means multicast, and small numbers are left to well-known ones.
func (n *NIC) newQPN() uint32 {
	for {
		q := n.Random() & 0xffffff
		if q < 0x100 || q == 0xffffff {
			continue
		}
		if _, taken := n.qps[q]; !taken {
			return q
		}
	}
}

// newNumber is newQPN for a session, whose numbers have the remainder that SetNumbers has set.
func (s *Session) newNumber() uint32 {
	for {
		q := s.nic.newQPN()
		if s.modulus > 0 {
			if q += s.remainder - q%s.modulus; q >= 0xffffff || s.nic.qps[q] != nil {
				continue
			}
		}
		return q
	}
}

// SetNumbers makes the numbers of later queue pairs of the session leave a remainder: the kernel steers packets by it (package
// engine). The rest of a number stays random.
func (s *Session) SetNumbers(remainder, modulus uint32) { s.remainder, s.modulus = remainder, modulus }

// newKey picks an unused random key: the upper 24 bits name the object, the low 8
// are the variant that binding a window changes.
func (n *NIC) newKey() uint32 {
	for {
		k := n.Random()
		if k>>8 == 0 {
			continue
		}
		if _, taken := n.keys[k>>8]; !taken {
			return k
		}
	}
}

// QP finds a queue pair by its number.
func (n *NIC) QP(num uint32) *QP { return n.qps[num] }

// EachQP calls f for every queue pair.
func (n *NIC) EachQP(f func(*QP)) {
	for _, q := range n.qps {
		f(q)
	}
}

// Local reports whether gid is one of this NIC's own addresses.
func (n *NIC) Local(gid *ib.GID) bool {
	for i := range n.GIDs {
		if n.GIDs[i].GID == *gid {
			return true
		}
	}
	return false
}

// Multicast are the queue pairs attached to a group.
func (n *NIC) Multicast(gid ib.GID) []*QP { return n.mcast[gid] }

// Groups are the groups that queue pairs are attached to.
func (n *NIC) Groups() iter.Seq[ib.GID] { return maps.Keys(n.mcast) }

// Sessions is how many devices are open.
func (n *NIC) Sessions() int { return len(n.sessions) }

// EachSession calls f for every session.
func (n *NIC) EachSession(f func(*Session)) {
	for s := range n.sessions {
		f(s)
	}
}

// FaultOwner returns the session whose shared memory contains an address of the daemon.
func (n *NIC) FaultOwner(addr uintptr) *Session {
	for s := range n.sessions {
		if s.Space != nil && s.Space.Contains(addr) || s.Arena != nil && memory.Within(addr, s.Arena.mem) {
			return s
		}
	}
	return nil
}
