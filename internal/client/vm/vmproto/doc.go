// Package vmproto is the protocol between the daemon and the agent in a virtual machine, on the machine's virtio-serial port. The
// two share neither descriptors nor memory, only a stream of bytes. So everything that package protocol passes beside its
// messages has a number here:
//
//	program ── unix socket, descriptors ── agent ══ port: frames ══ daemon ── a session
//
// A stream of frames carries many conversations. Each corresponds to one connection to the daemon's socket on a host, with the
// messages of package protocol, unchanged.
//
//	agent to daemon                          daemon to agent
//	Hello     a new agent: discard the old   Welcome   all state of the old agent is gone
//	Open      a conversation and its owner   Message   a reply, or an answer to the greeting
//	Arena     pages for queues, Grown more   Handle    the next message comes with this handle
//	Pin       pages of the next message      Event     for a handle; Raise, Lower likewise
//	Message   a greeting, or a request       Recall    withdraw unread events: Returned
//	Bell      a program rang its doorbell    Unpin     the daemon has released a pin
//	Close     the program has hung up        Drop      the daemon has released a handle
//	Returned  unread events                  Grow      more pages for queues
//	                                         File      a file of the sysfs tree
//	                                         Close     the conversation has ended completely
//
// Memory is named by runs: a guest-physical address and a length. The agent guarantees that a program names only its own pages,
// and the daemon checks that a run lies in the machine's memory.
//
// Either side may be restarted at any time, in the middle of a frame. The other side then finds the start by the magic of a Hello
// or Welcome; 16 random bytes of the agent connect the two.
package vmproto
