package protocol

import "time"

// Top is the content of `vrdma top`: the counters of every NIC. A tool computes rates from two queries.
type Top struct {
	Error   string      `json:"error,omitempty"`
	Time    time.Time   `json:"time"` // time of the reading
	Started time.Time   `json:"started"`
	Pid     int         `json:"pid"`
	CPU     float64     `json:"cpu_seconds"` // of the daemon, all threads
	NICs    []NICStatus `json:"nics"`
	// Loops are the daemon's loops, if there are several, for callers that may see its total work.
	Loops []LoopStatus `json:"loops,omitempty"`
}

// NICStatus is a virtual NIC, the rest of a tenant's deleted NICs (no NIC), or traffic without a tenant (tenant _system).
type NICStatus struct {
	Tenant    string   `json:"tenant"`
	Network   string   `json:"network,omitempty"`
	NIC       string   `json:"nic,omitempty"`
	Live      bool     `json:"live"`
	Addresses []string `json:"addresses,omitempty"`
	// Container is the name of the container, pod or virtual machine that has the NIC now; "": none, or unknown.
	Container string `json:"container,omitempty"`
	// RoCE is the receiver of UDP port 4791 of its addresses, if the NIC is attached as a network card: daemon, or card.
	RoCE string `json:"roce,omitempty"`
	// Current numbers.
	Sessions    int    `json:"sessions"`
	QPs         int    `json:"qps"`
	Connections int    `json:"connections"` // queue pairs that have a peer
	Registered  uint64 `json:"registered_bytes"`
	// Used is the usage since the meter started, across restarts of the daemon, by column name; zeros are omitted.
	Used map[string]uint64 `json:"used"`
	// At is the time of the reading: rates are computed over the time between two.
	At time.Time `json:"at,omitzero"`
	// Delays counts requests by the time from the doorbell to their turn; zero counts are omitted.
	Delays []DelayStatus `json:"delays,omitempty"`
}

// DelayStatus is the number of requests whose delay was below a bound, and not below the previous bound.
type DelayStatus struct {
	BelowNS int64  `json:"below_ns"`
	Count   uint64 `json:"count"`
}

// UsageReport is the answer to a usage request.
type UsageReport struct {
	Error   string        `json:"error,omitempty"`
	Records []UsageRecord `json:"records"`
	Columns []string      `json:"columns"` // all columns, in order
}

// UsageRecord is the usage of a NIC or a tenant in a period.
type UsageRecord struct {
	Tenant  string            `json:"tenant"`
	Network string            `json:"network,omitempty"`
	NIC     string            `json:"nic,omitempty"` // empty: known only for the tenant
	From    time.Time         `json:"from"`
	To      time.Time         `json:"to"`
	Used    map[string]uint64 `json:"used"`
}
