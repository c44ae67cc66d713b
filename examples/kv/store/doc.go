// Package store is a key-value store that can be read in three ways: by asking the server with a
// message over RDMA (RPC), by asking it over TCP, and by an RDMA READ of the server's memory, which
// the server process takes no part in.
//
//	client                                   server process
//	  RPC        ── SEND get 7 ───────────▶  looks it up
//	             ◀───────── SEND value ────
//	  TCP        ── get 7 ────────────────▶  looks it up
//	             ◀─────────────── value ───
//	  one-sided  ── READ slot 7 ──▶ device ◀── memory of the table; the process sleeps
//	  updates    ── put 7, by RPC or TCP ─▶  writes slot 7
//
// Keys are numbers from 0 on, as in the table of a C program. Key k lies in slot k:
//
//	offset   0  version   counts the updates of this key
//	         8  checksum  CRC-64 of key, version, length and value
//	        16  length    of the value
//	        24  value
//
// # Why a one-sided read is never torn
//
// An RDMA READ is not atomic. While the device copies a slot, the server may be writing it, so the
// client can get the beginning of one value and the end of another. Between hosts a READ is many
// packets, and lost ones are read again later. Nothing is promised about the order either. A version
// in front and one behind the value would only help if bytes were read in order.
//
// So the client trusts what it has read only if the checksum fits, and reads again if it does not.
// That needs no order, neither of the reader's loads nor of the writer's stores. After some attempts in
// vain it asks the server, which has a lock. A mixture of two records passes with a chance of one in
// 2^64, unless somebody makes values for that purpose: a CRC is no signature.
//
// # Why it is linearizable
//
// Say that a client has read the whole record with version v. Every byte of it was in memory at some
// moment of the READ. Then:
//
//   - It is not too old. Had the update to v+1 been answered before the READ began, all bytes of v+1
//     would have been in memory, and the version of v+1 differs from v in at least one of them.
//   - Reads do not go backwards. After a READ has returned v, all bytes of v, or newer ones, are in
//     memory. A READ that begins later cannot find the whole of v-1.
//   - It is not too new. The server makes version v only after the client has asked for the update.
//
// The server writes under a lock and counts, so a version stands for one update.
//
// # Why clients that die do no harm
//
// Clients may read the table, not write it: its key gives the right to READ and nothing else. There are
// no locks in it that a client could take to its grave. An update that the server has received is made,
// whether its client still lives or not; one that it has not received is not made at all.
package store
