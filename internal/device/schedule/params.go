package schedule

// A Class is the service class of a NIC.
type Class uint8

const (
	Bulk Class = iota
	// Latency is served first. It needs a cap on outgoing traffic; without one it is served as Bulk, because otherwise every NIC could
	// claim it.
	Latency
)

// A Rate caps outgoing and incoming traffic, in units per second; 0 means no cap.
type Rate struct {
	Out, In                 uint64 // bytes
	MessagesOut, MessagesIn uint64
	// Burst is the number of bytes that may pass at once after a pause; 0 means a millisecond of the rate, and at least 64 KiB.
	Burst uint64
}

// TenantParams are the parameters of a tenant; the zero value has no cap.
type TenantParams struct {
	Weight int // its share of the loop's time; 0 means 1
	Rate   Rate
}

// NICParams are the parameters of a NIC; the zero value has no cap.
type NICParams struct {
	Weight int // its share of its tenant's time; 0 means 1
	Rate   Rate
	// Guarantee is the number of bytes per second that it can always send; 0: none.
	Guarantee uint64
	Class     Class
}

const (
	// mostWeight limits a weight, and so the length of a round. Package tenant has the same limit.
	mostWeight = 10_000
	// leastBurst and leastMessages are the smallest bursts of bytes and of messages.
	leastBurst    = 64 << 10
	leastMessages = 8
	mostBurst     = 4 << 30
)

func weightOf(w int) int64 { return int64(max(1, min(w, mostWeight))) }
