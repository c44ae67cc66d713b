// Package meter accounts what tenants use: bytes, messages, drops, memory, the daemon's time.
//
//	NICs ── read every second ──▶ Sample ─┬─▶ totals    per tenant and NIC, never fall
//	                                      └─▶ records   the same by the minute, for bills
//	                                   Flush ──▶ book    the usage file, which survives kill -9
//
// A NIC counts from its creation (nic.Counters). The meter adds each increment to the totals, which therefore continue
// when a NIC is created again, and when the daemon restarts. Memory and file hold absolute values: reading the file twice
// counts nothing twice, and a crash loses only what came after the last flush.
//
// Records per minute are merged into records per hour, and these into records per day and tenant. The sums stay, and the
// number of records is bounded. The total of a deleted NIC is kept while records of it exist, then it is added to its
// tenant's.
//
// The package takes the time as an argument, except in Run. It knows no loop and no socket: its caller passes readings.
package meter
