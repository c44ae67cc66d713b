// Package store is a key-value store that can be read in three ways: by a message over RDMA (RPC), over TCP, and by
// an RDMA READ of the server's memory, without the server process.
//
//	client                                   server process
//	  RPC        ── SEND get 7 ───────────▶  looks it up
//	             ◀───────── SEND value ────
//	  TCP        ── get 7 ────────────────▶  looks it up
//	             ◀─────────────── value ───
//	  one-sided  ── READ slot 7 ──▶ device ◀── memory of the table; the process sleeps
//	  updates    ── put 7, by RPC or TCP ─▶  writes slot 7
//
// Keys are numbers from 0 on, as in the C program's table. Key k is in slot k:
//
//	offset   0  version   counts the updates of this key
//	         8  checksum  CRC-64 of key, version, length and value
//	        16  length    of the value
//	        24  value
//
// # Why a one-sided read is never torn
//
// An RDMA READ is not atomic. The server may write a slot while the device copies it, so the client can get the
// beginning of one value and the end of another. Between hosts a READ is many packets, and lost ones are read again
// later. The order is not guaranteed either, so a version before and after the value would not help.
//
// The client therefore accepts a record only if the checksum matches, and reads again if not. This needs no order,
// neither of the reader's loads nor of the writer's stores. After some failed attempts it asks the server, which has a
// lock. A mixture of two records passes with a probability of 2^-64, unless an attacker chooses the values: a CRC is
// not a signature.
//
// # Why it is linearizable
//
// Let a client have read the whole record with version v. Every byte of it was in memory at some time during the
// READ. Then:
//
//   - It is not too old. Had the update to v+1 been answered before the READ began, all bytes of v+1
//     would have been in memory, and the version of v+1 differs from v in at least one of them.
//   - Reads do not go backwards. After a READ has returned v, all bytes of v, or newer ones, are in
//     memory. A READ that begins later cannot find the whole of v-1.
//   - It is not too new. The server makes version v only after the client has asked for the update.
//
// The server writes under a lock and counts, so a version identifies one update.
//
// # Why dead clients do no harm
//
// Clients may read the table but not write it: its memory key allows only READ. The table has no locks that a dead
// client could hold. The server executes every update that it has received, whether or not its client still
// runs, and no other.
package store
