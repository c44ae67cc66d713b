// Package uverbs answers the kernel's uverbs commands: what a program writes to
// /dev/infiniband/uverbs0.
//
//	bytes of a command ── Context.Run ──▶ Call ── Answer ──▶ reply
//	                          │  a row of the table: sizes, decoder, handler
//	                          ▼
//	                     Device.Do ── nic.Session (objects)
//
// Commands are rows of a table (table.go): a decoder, the sizes that the kernel checks, a
// handler. Unknown commands get the kernel's errno. Known but unsupported commands have a row with their errno.
//
// Sizes, masks and handles are checked here as drivers/infiniband/core/uverbs_main.c and
// uverbs_cmd.c check them, and the errno is theirs; the rules of the objects themselves
// are package nic's.
//
// The package knows no sockets and no processes: a Device stands for the client. It must
// never trust one: every length is checked against the bytes that came, and addresses in
// commands are only handed back as places to store to.
package uverbs
