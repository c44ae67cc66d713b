// Package budget limits what the users of a daemon can make it allocate, so that one user cannot exhaust what all need:
// descriptors, mappings, memory.
//
//	                  the daemon        limit: what the machine gives it
//	                 /          \
//	            owner            others limit: less, so that a reserve is left for the owner
//	(bounded by the daemon)     /   |   \
//	                     user 1000 1001 tenant red   limits: one user's part; the tenant's quota
//	                                     /    \
//	                             user 1000 1001 ...  of that tenant; limit: one user's part
//
// An Account is a node of this tree. A charge (a Bill) counts in the account and in all accounts above it. It fails, without
// counting anything, if one of them would exceed its limit; the error names that account. An account knows only its parent. A
// user of a tenant's NIC has an account below the tenant's, even if it is the daemon's owner.
//
// A Pace limits a rate per second.
//
// All operations are O(1) and safe for concurrent use. A nil Account is unlimited, for tests and tools without users.
//
// The package only counts. The caller must refund each charge exactly once.
package budget
