// Package schedule decides which NIC has the next turn on a loop, and how much it may move in
// it: tenants over NICs. Inside a NIC the loop goes on by itself, round users, sessions and queue
// pairs (package engine).
//
//	              ┌─ latency   NICs of class latency, while they use less than half of the loop
//	Next ─ first ─┼─ green     NICs below their guarantee
//	              └─ tenants ─┬─ red ──┬─ red/web
//	                (rings)   │        └─ red/db
//	                          └─ blue ─── blue/job
//	parked: NICs and tenants that are over a cap, in a timing wheel until they are not
//
// # Shares
//
// What is shared is the loop's time, because that is what there is one of: a tenant with many
// small messages and one with few large ones have the same share of it, which no count of bytes
// gives. Each level is a ring with deficits. In a round every member may use its quantum of time,
// and what it used too much is taken from its next rounds. Within a round members take turns, so
// that nobody waits for the whole quantum of another. Who has been idle, and has something of this
// round's quantum left, comes before those who have been waiting: a tenant that uses less than its
// share waits for one turn of another and no more (ring.go).
//
// It is work-conserving: only who wants a turn is in a ring, and who is alone there owes nothing.
//
// # Caps and guarantees
//
// Caps are token buckets for bytes and messages, out and in, of a NIC and of its tenant. They are
// filled when they are looked at (bucket.go). A turn may move what the bucket holds, and a packet
// more. Whoever's bucket is empty is parked (wheel.go). What comes in has no turn to refuse: the
// caller asks Admit before it lets somebody send to a NIC, and waits for Opened.
//
// A guarantee is a bucket, too. While it holds something its NIC comes before all tenants. Its time
// is charged all the same: a guarantee is what a NIC has at least, and not a gift on top of its
// share. Latency is charged likewise, and has a bucket of loop time besides: with a cap in
// bytes alone, one-byte messages would take the whole loop.
//
// # Cost
//
// Nothing here allocates after a NIC has joined. A decision is O(1), amortised: a member that is
// passed over pays off a quantum of time, and that time has been used before. With one NIC and no
// caps there are no rings at all.
//
// The package is pure: time is an argument. It is not safe for use by several goroutines; a loop
// owns its Scheduler.
package schedule
