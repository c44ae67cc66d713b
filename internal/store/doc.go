// Package store keeps keys and values with revisions: what a daemon was told to be, so that it
// is the same after it was killed. It knows nothing of what the values say.
//
//	List(prefix)                everything below a prefix, at one revision
//	Watch(prefix, revision)     every change since, in order, one batch a commit
//	Commit(conditions, writes)  all of the writes, if all of the conditions hold
//
// The semantics are etcd's, so that etcd fits behind the same interface. A store has one
// revision, which counts commits that changed something. An entry has the revision at which it
// was written. A watch from a revision that is no longer known ends with ErrCompacted: list
// again, compare, and watch from the revision of the list plus one. Only the last changes are
// kept (History), and none across a restart, so this path is always in use.
//
// There are two stores, with the same contents type behind them: Memory, for tests and for a
// daemon that keeps nothing, and Bolt, a file. A commit to the file is one transaction of
// bbolt, with fsync, of any size: a daemon that is killed at any moment finds all of it or
// nothing. What is read is read once, when the file is opened, and served from memory.
//
// # Commits of any size, with etcd
//
// A transaction of etcd has at most 128 operations, and 1.5 MB. A larger commit will be:
//
//  1. Keys stage/ID/N, each with a piece of the writes, in as many transactions as it takes,
//     and a key stage/ID/writer on the writer's lease. Nobody else looks at these.
//  2. One transaction: if the conditions hold and stage/ID/writer is there, put commit/ID.
//     This is the moment at which everything is visible: List and Watch apply the pieces of
//     every commit/ID, in order of revision, on top of the keys themselves.
//  3. The writer, or whoever finds commit/ID, copies the pieces to their keys, each on the
//     condition that commit/ID is still there, then deletes commit/ID and the pieces. A watcher
//     that has told of commit/ID passes over these copies: they change no value.
//
// A writer that dies in the first step leaves pieces that nobody sees and that hold nothing: an
// address is allocated by a key among the writes. Whoever finds pieces without a writer and
// without a commit/ID deletes them, on those conditions. One that dies in the third step has
// committed; others finish it. The conditions have to fit into one transaction too, so users
// of the store condition a commit on a key that all writers of the same things write (package
// control: generation), and not on each key that they have read.
package store
