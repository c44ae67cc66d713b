// Package vmagent is the agent in a virtual machine: it gives programs there the socket, the sysfs tree and the shared object
// that a daemon gives programs on a host. Package vm is the daemon's side, and package vmproto the protocol between the two.
//
//	program ── PATH: unix socket, descriptors ── client ─┐
//	program ── PATH ──────────────────────────── client ─┼─ Agent ══ /dev/vportNpM ══ the daemon
//	   └ memory: memfds that the agent makes ── pinned ──┘
//
// The agent creates what the daemon creates on a host: the memfd of a program's registered memory, the memfd of its queues, and
// the sockets from which it reads events. It pins the pages, so that the machine's kernel neither moves nor frees them, and sends
// their guest-physical addresses to the daemon. A program can name only pages of its own memfd, so it cannot reach memory that it
// has not registered.
//
// A pin ends when the daemon sends Unpin, or sends a Welcome, which means that all state of an earlier connection is gone. It
// never ends before: until then the daemon may write there.
//
// The agent must be root: the kernel shows physical addresses only to root.
package vmagent
