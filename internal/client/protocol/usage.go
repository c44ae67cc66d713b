package protocol

import "time"

// Top is what `vrdma top` shows: what every NIC has counted so far. Who wants rates asks twice.
type Top struct {
	Error   string      `json:"error,omitempty"`
	Time    time.Time   `json:"time"` // when it was read
	Started time.Time   `json:"started"`
	Pid     int         `json:"pid"`
	CPU     float64     `json:"cpu_seconds"` // of the daemon, all threads
	NICs    []NICStatus `json:"nics"`
}

// NICStatus is a virtual NIC, or what is left of those of a tenant that are gone (no NIC), or what
// is nobody's (tenant _system).
type NICStatus struct {
	Tenant    string   `json:"tenant"`
	Network   string   `json:"network,omitempty"`
	NIC       string   `json:"nic,omitempty"`
	Live      bool     `json:"live"`
	Addresses []string `json:"addresses,omitempty"`
	// Container is the container or pod that has it now, in its engine's words, or the virtual machine; "": none, or nobody knows.
	Container string `json:"container,omitempty"`
	// RoCE is whose UDP port 4791 of its addresses is, if somebody has it as a network card: daemon, or card.
	RoCE string `json:"roce,omitempty"`
	// What it has now.
	Sessions    int    `json:"sessions"`
	QPs         int    `json:"qps"`
	Connections int    `json:"connections"` // queue pairs that have a peer
	Registered  uint64 `json:"registered_bytes"`
	// Used is what there has been since the meter began, over restarts of the daemon, by the
	// names of its columns; zeros are left out.
	Used map[string]uint64 `json:"used"`
	// At is when the loop was asked for these numbers: rates are over the time between two.
	At time.Time `json:"at,omitzero"`
	// Delays are the requests that have waited, from the doorbell to their turn; counts of none
	// are left out.
	Delays []DelayStatus `json:"delays,omitempty"`
}

// DelayStatus is how many requests have waited for less than so long, and not less than the bound
// before.
type DelayStatus struct {
	BelowNS int64  `json:"below_ns"`
	Count   uint64 `json:"count"`
}

// UsageReport are the records that were asked for.
type UsageReport struct {
	Error   string        `json:"error,omitempty"`
	Records []UsageRecord `json:"records"`
	Columns []string      `json:"columns"` // all that there are, in order
}

// UsageRecord is what a NIC, or a tenant, used in a time.
type UsageRecord struct {
	Tenant  string            `json:"tenant"`
	Network string            `json:"network,omitempty"`
	NIC     string            `json:"nic,omitempty"` // empty: known of the tenant only
	From    time.Time         `json:"from"`
	To      time.Time         `json:"to"`
	Used    map[string]uint64 `json:"used"`
}
