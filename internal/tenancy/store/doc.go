// Package store keeps keys and values with revisions: what a daemon was told to be, so that it
// is the same after it was killed. It knows nothing of what the values say.
//
//	List(prefix)                everything below a prefix, at one revision
//	Watch(prefix, revision)     every change since, in order, one batch a commit
//	Commit(conditions, writes)  all of the writes, if all of the conditions hold
//
// The semantics are etcd's, so that etcd fits behind the same interface. A store has one
// revision, which every commit that changed something raises. An entry has the revision at which it
// was written. A watch from a revision that is no longer known ends with ErrCompacted: list
// again, compare, and watch from the revision of the list plus one. Only the last changes are
// kept (History), and none across a restart, so this path is always in use.
//
// There are two stores here, with the same contents type behind them: Memory, for tests and for a
// daemon that keeps nothing, and Bolt, a file. A commit to the file is one transaction of
// bbolt, with fsync, of any size: a daemon that is killed at any moment finds all of it or
// nothing. What is read is read once, when the file is opened, and served from memory.
//
// A third is in etcd, for many hosts (package store/etcd). It is a Remote: List and Watch read a
// Copy of it, in memory and in a file, which is there while etcd is not. Package storetest has the
// tests that all three pass.
//
// Revisions go up, and by more than one where others write to the same etcd.
package store
