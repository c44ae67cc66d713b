// Package credentials is who is at the other end of a connection: user and process, where the
// process lives (Home), which account pays for it, and how its memory is reached and its
// end is noticed (Identity). All of it is what the kernel says of a process of this machine.
//
// A client that is not one, of a virtual machine for instance, will have a Caller too: its
// agent says which user it is, and when it is gone.
package credentials
