// Package etcd is a store in etcd, for the daemons of many hosts. No type of etcd's leaves it, and
// only the daemon's main package imports it: the client is a third of the program's size.
//
//	Commit ──transaction──▶ etcd ──watch──▶ follow ──▶ store.Copy ──▶ List, Watch
//	                          ▲                           │
//	probe: is it there, and still the same store?      a file: what it was, when it is away
//
// Reads are of the copy. It is some milliseconds behind etcd, or as old as Health says. Whether a
// commit's conditions hold is decided by etcd. A commit returns when the copy has it, and a commit
// that failed when the copy has what made it fail, so who lists again sees why.
//
// # Keys
//
// All keys have a prefix, /vrdma/v1/. Entries are at their own keys, and their revisions are
// etcd's. The store's own keys begin with "~", which no entry may:
//
//	KEY                 an entry
//	~commit             a large commit that is visible: {"schema":1,"id":ID,"pieces":N}
//	~stage/ID/000000 …  its pieces, or those of one that is not visible yet
//	~writer/ID          on a lease: somebody is staging ID
//	~turn/CLIENT        the mark of this client's last commit
//
// # Commits of any size
//
// A transaction of etcd has at most 128 operations and 1.5 MB. A commit that fits is one
// transaction. A larger one takes three steps:
//
//  1. Stage. ~writer/ID on a lease, and the writes in pieces below ~stage/ID/. Nobody looks at them.
//  2. Switch. One transaction: if the conditions hold, there is no ~commit and ~writer/ID is there,
//     put ~commit. From this revision on every reader has all of the writes: the pieces on top of
//     the keys.
//  3. Fold. The pieces are copied to their keys, a transaction each, on the condition that ~commit is
//     still the same; then ~commit and the pieces are deleted. Readers know the copies by their
//     values and tell nobody of them.
//
// Every commit is on the condition that there is no ~commit, so nothing changes between switch and
// the end of the fold but what the fold itself writes, and to copy a piece twice does no harm. Who wants to
// commit and finds a ~commit waits a moment and then folds it: its writer may be dead. So does every
// daemon, now and then (tidy.go), and deletes pieces that have neither ~writer nor ~commit. A
// writer that dies in step 1 has done nothing, one that dies in step 3 has committed.
//
// An entry that was folded is in etcd at a later revision than the one at which it was
// committed. A reader that was there at the switch has the latter as the entry's revision, one that lists
// later the former. So a revision is a token for conditions, for the store that gave it, and is not compared
// between hosts.
//
// # What etcd does not say
//
// A watch is silent while etcd is away, and when etcd has come back empty. So the copy is asked
// for twice: a probe every few seconds reads the entry meta, and every new stream of a watch is
// believed only after meta was read once more. If meta names another store or is gone, or etcd's
// revision is lower than one that was seen, the store is Strange: the copy stays as it is, commits
// are refused, and Health says why. When it is the right store again, everything is listed.
//
// A watch from a revision that etcd has compacted ends with an error; the store then lists, after a
// random moment of up to two seconds since all other hosts may have to, and tells its watchers of
// the difference as one batch.
//
// The answer to a transaction can be lost. So every commit also writes a key of its client, ~turn/CLIENT,
// on the condition that it is as the commit before left it. From this key Commit learns whether it
// was made; if not, it writes the key, after which the lost transaction cannot be made any more (turn.go). Only
// if etcd does not answer this either, the error says that it is not known.
//
// Values are not believed: what can be no entry, no commit and no piece is left out and is in
// Health's Problems.
package etcd
