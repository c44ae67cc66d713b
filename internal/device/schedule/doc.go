// Package schedule decides which NIC has the next turn on a loop, and how much it may move in that turn. It schedules
// tenants, then NICs; package engine schedules users, sessions and queue pairs within a NIC.
//
//	              ┌─ latency   NICs of class latency, while they use less than half of the loop
//	Next ─ first ─┼─ green     NICs below their guarantee
//	              └─ tenants ─┬─ red ──┬─ red/web
//	                (rings)   │        └─ red/db
//	                          └─ blue ─── blue/job
//	parked: NICs and tenants that are over a cap, in a timing wheel until their buckets are filled
//
// # Shares
//
// The scheduler shares the loop's time, not bytes: a tenant with many small messages and a tenant with few large ones get
// equal time. Each level is a deficit round robin (ring.go). In a round each member may use its quantum of time; an excess
// is subtracted from its next rounds. Members take turns within a round, so none waits for the whole quantum of another.
// A member that returns from idle with some quantum left goes first: a tenant that uses less than its share waits for at
// most one turn of another tenant.
//
// The scheduler is work-conserving: only members that want a turn are in a ring, and a single member has no deficit.
//
// # Caps and guarantees
//
// Caps are token buckets for bytes and messages, out and in, of a NIC and of its tenant. A bucket is refilled when it is
// read (bucket.go). A turn may move what the bucket holds plus one packet. A NIC with an empty bucket is parked
// (wheel.go). Incoming traffic has no turn that could be refused: the caller calls Admit before a peer sends to a NIC,
// and waits for Opened.
//
// A guarantee is a bucket, too. While it is not empty, its NIC precedes all tenants. Its time is charged to its share: a
// guarantee is a minimum, not an addition. Class latency is charged likewise and has a bucket of loop time, because with
// a cap in bytes alone one-byte messages could take the whole loop.
//
// # Cost
//
// Nothing allocates after a NIC has joined. A decision is O(1), amortised: a skipped member reduces its deficit by one
// quantum, which an earlier turn has used. With one NIC and no caps there are no rings.
//
// The package is pure: time is an argument. It is not safe for use by several goroutines; a loop
// owns its Scheduler.
package schedule
