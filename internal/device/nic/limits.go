package nic

import "fmt"

// Limits bound what one session may hold and what the device reports. The errno of
// each is the kernel's.
type Limits struct {
	PDs, CQs, QPs, MRs, MWs, SRQs, AHs, Channels int

	CQE    uint32 // entries in a completion queue
	QPWR   uint32 // work requests in a queue
	SRQWR  uint32
	SGE    uint32
	SRQSGE uint32
	Inline uint32

	RDAtomic uint32 // outstanding reads and atomics a queue pair, either way

	McastGroups, McastAttach int

	// Memory bounds the bytes that one process may register; 0: three quarters of
	// the machine's memory.
	Memory uint64
}

// DefaultLimits are close to rxe's, so that programs size themselves as they do
// there. A completion queue may be larger than rxe's 32767 entries: libfabric's rxm asks
// for 262144. What a queue may really have is bounded by the session's arena.
var DefaultLimits = Limits{
	PDs: 32764, CQs: 16384, QPs: 65535, MRs: 256 << 10, MWs: 128 << 10, SRQs: 960, AHs: 32767, Channels: 1024,
	CQE: 1<<22 - 1, QPWR: 1 << 20, SRQWR: 1 << 20, SGE: 32, SRQSGE: 27, Inline: 800,
	RDAtomic:    128,
	McastGroups: 8192, McastAttach: 56,
}

// Check says which limit is above what handles can name: a handle of a queue pair is a
// bit of the doorbell page, one of anything else a number below 2^20.
func (l *Limits) Check() error {
	for _, c := range []struct {
		name         string
		limit, space int
	}{
		{"qps", l.QPs, doorbells}, {"pds", l.PDs, handles}, {"cqs", l.CQs, handles}, {"mrs", l.MRs, handles},
		{"mws", l.MWs, handles}, {"srqs", l.SRQs, handles}, {"ahs", l.AHs, handles}, {"channels", l.Channels, handles},
	} {
		switch {
		case c.limit < 0:
			return fmt.Errorf("limits.%s is %d: a limit is not negative", c.name, c.limit)
		case c.limit > c.space:
			return fmt.Errorf("limits.%s is %d: an opened device can have at most %d", c.name, c.limit, c.space)
		}
	}
	return nil
}
