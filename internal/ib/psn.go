package ib

// Packet sequence numbers count modulo 2^24.
const (
	PSNMask = 1<<24 - 1
	// PSNHalf is how many packets may be in flight: beyond it, old and new look alike.
	PSNHalf = 1 << 23
)

// PSNAdd is the number n packets after p.
func PSNAdd(p, n uint32) uint32 { return (p + n) & PSNMask }

// PSNDist is how far to is ahead of from, going forward.
func PSNDist(from, to uint32) uint32 { return (to - from) & PSNMask }

// Queue pair numbers have 24 bits.
const (
	QPNMask = 1<<24 - 1
	// EveryQP is the number that datagrams to a group are for.
	EveryQP = QPNMask
)
