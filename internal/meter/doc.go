// Package meter is what tenants have used: bytes, messages, drops, memory, time of the daemon.
//
//	NICs ── read every second ──▶ Sample ─┬─▶ totals    per tenant and NIC, never fall
//	                                      └─▶ records   the same by the minute, for bills
//	                                   Flush ──▶ book    a file that survives kill -9
//
// A NIC counts since it was made (nic.Counters). The meter adds what came since it last looked
// to the totals, so these go on where a NIC is made anew, and where the daemon is. What it
// holds and what the file holds are absolute values: reading the file twice counts nothing
// twice, and what a crash takes away is what came after the last flush.
//
// Records of a minute become records of an hour after a while, and these become records of a
// day, which know only the tenant: the sum stays what it was, and their number is bounded. The
// total of a NIC that is gone is kept as long as there are records of it, then it is part of its
// tenant's.
//
// The package takes the time as an argument, except in Run. It knows no loop and no socket:
// whoever runs it gives it readings.
package meter
