// Package vmproto is what the daemon and the agent in a virtual machine say to each other on the
// machine's virtio-serial port. There are no descriptors and no shared memory between the two, only
// a stream of bytes, so everything that travels beside messages of package protocol has a name here:
//
//	program ── unix socket, descriptors ── agent ══ port: frames ══ daemon ── a session
//
// A stream of frames carries many conversations. Each is what one connection to the daemon's socket
// is on a host, and its messages are those of package protocol, unchanged.
//
//	agent to daemon                          daemon to agent
//	Hello     a new agent: forget the last   Welcome   all of the last one is gone
//	Open      a conversation; who it is      Message   a reply, or an answer to the greeting
//	Arena     pages for queues, Grown more   Handle    the next message comes with this handle
//	Pin       pages of the next message      Event     for a handle; Raise, Lower likewise
//	Message   a greeting, or a request       Recall    take unread events back: Returned
//	Bell      somebody rang                  Unpin     the daemon has let go of a pin
//	Close     the program has hung up        Drop      … of a handle
//	Returned  events that nobody has read    Grow      more pages for queues
//	                                         File      a file of the device tree
//	                                         Close     the conversation is over, all of it
//
// Memory is named by runs: a guest-physical address and a length. The agent answers for it that a
// program names its own pages only, and the daemon checks that a run lies in the machine's memory.
//
// Either end may be restarted at any time, in the middle of a frame. The other then finds the
// beginning by the magic of a Hello or Welcome, which 16 random bytes of the agent's tie together.
package vmproto
