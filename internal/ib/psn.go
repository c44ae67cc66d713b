package ib

// Packet sequence numbers count modulo 2^24.
const (
	PSNMask = 1<<24 - 1
	// PSNHalf is the maximum number of packets in flight: with more, old and new numbers are ambiguous.
	PSNHalf = 1 << 23
)

// PSNAdd returns the number n packets after p.
func PSNAdd(p, n uint32) uint32 { return (p + n) & PSNMask }

// PSNDist returns the distance from one number forward to another.
func PSNDist(from, to uint32) uint32 { return (to - from) & PSNMask }

// Queue pair numbers have 24 bits.
const (
	QPNMask = 1<<24 - 1
	// EveryQP is the destination queue pair number of multicast datagrams.
	EveryQP = QPNMask
)
