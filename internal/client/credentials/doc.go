// Package credentials identifies the peer of a connection: user and process, its namespaces (Home), the account to charge, and
// how to reach its memory and to notice its end (Identity). Everything comes from the kernel and concerns processes of this
// machine.
//
// A client that is not a process of this machine, for instance in a virtual machine, has a Caller too: its agent reports the
// user, and the client's end.
package credentials
