// Package uverbs executes the kernel's uverbs commands, which a program writes to /dev/infiniband/uverbs0.
//
//	bytes of a command ── Context.Run ──▶ Call ── Answer ──▶ reply
//	                          │  a row of the table: sizes, decoder, handler
//	                          ▼
//	                     Device.Do ── nic.Session (objects)
//
// Commands are rows of a table (table.go): a decoder, the sizes that the kernel checks, and a handler. Unknown commands get the
// kernel's errno. Known but unsupported commands have a row with their errno.
//
// The package checks sizes, masks and handles like the kernel's uverbs_main.c and uverbs_cmd.c, with the same errnos. Package nic
// checks the rules of the objects.
//
// The package knows neither sockets nor processes: a Device stands for the client. It must never trust a client: every length is
// checked against the received bytes, and addresses in commands are only returned as store targets.
package uverbs
