// Package store keeps keys and values with revisions: the declared state of a daemon, which survives a crash. It does
// not interpret values.
//
//	List(prefix)                everything below a prefix, at one revision
//	Watch(prefix, revision)     every change since, in order, one batch a commit
//	Commit(conditions, writes)  all of the writes, if all of the conditions hold
//
// The semantics are etcd's, so that etcd fits behind the same interface. A store has one revision, which every
// effective commit raises. An entry has the revision at which it was written. A watch from a revision that is no longer
// known ends with ErrCompacted: list again, compare, and watch from the revision of the list plus one. Only the last
// changes are kept (History), and none across a restart, so this path is always in use.
//
// The package has two stores that share their in-memory part: Memory, for tests and for a daemon without a file, and
// Bolt, a file. A commit to the file is one transaction of bbolt, with fsync, of any size: after a crash at any moment
// the file has all of it or nothing. The file is read once, when it is opened, and reads are served from memory.
//
// A third store is in etcd, for many hosts (package store/etcd). It is a Remote: List and Watch read a Copy of it, in
// memory and in a file, also while etcd is away. Package storetest has the tests that all three pass.
//
// Revisions grow, by more than one where other clients write to the same etcd.
package store
