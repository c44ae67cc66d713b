// Package etcd is a store in etcd, for the daemons of many hosts. Its API has no type of etcd's. Only the daemon
// imports it.
//
//	committer ──transaction──▶ etcd ──watch──▶ replica ──▶ store.Copy ──▶ List, Watch
//	                            ▲                             │
//	health: is it there, and still the same store?           a file: the last state, for when etcd is away
//
// Reads use the copy. It is some milliseconds behind etcd, or as old as Health says. etcd decides whether a commit's
// conditions hold. A commit returns when the copy has it. A commit whose conditions failed returns when the copy has
// what made them fail, so that the caller's next list shows it.
//
// # Keys
//
// All keys have a prefix, /vrdma/v1/. Entries are at their own keys, and their revisions are etcd's. The store's own
// keys begin with "~", which no entry may:
//
//	KEY                 an entry
//	~commit             a large commit that is visible: {"schema":1,"id":ID,"pieces":N}
//	~stage/ID/000000 …  its pieces, or those of a commit that is not visible yet
//	~writer/ID          on a lease: a client is staging ID
//	~turn/CLIENT        the mark of this client's last commit
//
// # Commits of any size
//
// A transaction of etcd has at most 128 operations and 1.5 MB. A commit that fits is one transaction. A larger one
// takes three steps:
//
//  1. Stage. ~writer/ID on a lease, and the writes in pieces below ~stage/ID/. Readers ignore them.
//  2. Switch. One transaction: if the conditions hold, there is no ~commit and ~writer/ID exists,
//     put ~commit. From this revision on every reader has all of the writes: the pieces on top of
//     the keys.
//  3. Fold. The pieces are copied to their keys, a transaction each, on the condition that ~commit is
//     still the same; then ~commit and the pieces are deleted. Readers recognise the copies by their
//     values and do not report them.
//
// Every commit is on the condition that there is no ~commit. So between switch and the end of the fold only the fold
// writes, and copying a piece twice is harmless. A client that wants to commit and finds a ~commit waits a moment and
// then folds it, because its writer may be dead. Every daemon does so now and then (tidy.go), and deletes pieces that
// have neither ~writer nor ~commit. A writer that dies in step 1 has done nothing, one that dies in step 3 has
// committed.
//
// A folded entry has a later revision in etcd than the one at which it was committed. A reader that saw the switch has
// the revision of the commit, and a reader that lists later has etcd's. So a revision is a token for conditions of the
// store that returned it, and cannot be compared between hosts.
//
// # What etcd does not say
//
// A watch is silent while etcd is away, and when etcd has come back empty. So a probe reads the entry meta every few
// seconds, and every new stream of a watch is trusted only after meta was read once more. If meta names another store
// or is gone, or etcd's revision is lower than before, the store is Strange: the copy stays as it is, commits are
// refused, and Health says why. When it is the right store again, everything is listed.
//
// A watch from a revision that etcd has compacted ends with an error. The store then lists, after a random pause of up
// to two seconds because all other hosts may do so, too. It reports the difference to its watchers as one batch.
//
// The answer to a transaction can be lost. So every commit also writes a key of its client, ~turn/CLIENT, on the
// condition that the previous commit wrote it last. From this key Commit learns whether the transaction was made. If
// not, it writes the key, after which the lost transaction cannot be made any more (turn.go). Only if etcd does not
// answer this either, the error says that the result is unknown.
//
// Values are not trusted. What cannot be an entry, a commit or a piece is left out, and is in Health's Problems.
package etcd
