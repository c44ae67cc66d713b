// Package vmagent is the agent in a virtual machine: it gives programs there the socket, the device
// tree and the shared object that a daemon gives programs on a host. Package vm is its other half, in
// the daemon, and package vmproto what the two say to each other.
//
//	program ── PATH: unix socket, descriptors ── client ─┐
//	program ── PATH ──────────────────────────── client ─┼─ Agent ══ /dev/vportNpM ══ the daemon
//	   └ memory: memfds that the agent makes ── pinned ──┘
//
// The agent makes what the daemon makes on a host: the memfd that a program's registered memory
// lies in, the memfd of its queues, the sockets that it reads events from. It pins the pages, so
// that the machine's kernel neither moves nor frees them, and tells the daemon where in the
// machine's memory they are. A program can name pages of its own memfd only, which is why it cannot
// reach what it has not registered.
//
// A pin ends when the daemon says so (Unpin), or when it has said that nothing is left of what an
// earlier connection had (Welcome), and never before: until then the daemon may write there.
//
// The agent has to be root: the kernel tells nobody else where pages are.
package vmagent
