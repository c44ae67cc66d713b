// Package budget bounds what the users of a daemon may make it hold, so that one of
// them cannot use up what all of them need: descriptors, mappings, memory.
//
//	                  the daemon        limit: what the machine gives it
//	                 /          \
//	            owner            others limit: less, so that a reserve is left for the owner
//	(bounded by the daemon)     /   |   \
//	                     user 1000 1001 tenant red   limits: one user's part; the tenant's quota
//	                                     /    \
//	                             user 1000 1001 ...  of that tenant; limit: one user's part
//
// An Account is a node of this tree. A charge (a Bill) counts in the account and in
// every account above it, and fails, with nothing counted, if one of them would pass
// its limit; the error says which. An account knows only its parent. Who uses the NIC of a
// tenant has an account below that tenant's, the daemon's owner too.
//
// What is limited by the second is a Pace.
//
// Everything is O(1) and safe for concurrent use. A nil Account is unlimited: tests and
// tools that have no users need none.
//
// The package counts and never looks at what is counted: whoever charges makes sure
// that the same is refunded, once.
package budget
