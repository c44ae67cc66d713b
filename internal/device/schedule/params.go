package schedule

// A Class says how a NIC is served.
type Class uint8

const (
	Bulk Class = iota
	// Latency is served first. It needs a cap on what leaves, or it is served as Bulk: if
	// everybody came first, nobody would.
	Latency
)

// A Rate caps what leaves and what comes in, in units a second; 0 is no cap.
type Rate struct {
	Out, In                 uint64 // bytes
	MessagesOut, MessagesIn uint64
	// Burst is how many bytes may pass at once after a pause; 0: a millisecond of the rate, and
	// 64 KiB at least.
	Burst uint64
}

// TenantParams are those of a tenant; the zero value is one without a cap.
type TenantParams struct {
	Weight int // its share of the loop's time; 0 means 1
	Rate   Rate
}

// NICParams are those of a NIC; the zero value is one without a cap.
type NICParams struct {
	Weight int // its share of its tenant's time; 0 means 1
	Rate   Rate
	// Guarantee is how many bytes a second it can send whatever others do; 0: none.
	Guarantee uint64
	Class     Class
}

const (
	// mostWeight bounds a weight, and so how long a round may take. It is what package tenant
	// lets somebody declare.
	mostWeight = 10_000
	// leastBurst is that of bytes and leastMessages that of messages.
	leastBurst    = 64 << 10
	leastMessages = 8
	mostBurst     = 4 << 30
)

func weightOf(w int) int64 { return int64(max(1, min(w, mostWeight))) }
