// Package vm serves verbs to programs in virtual machines: the daemon's half of what package
// vmagent is in the machine.
//
//	machine                                       host
//	program ─ shim ─ agent ══ virtio-serial ══ QEMU ── unix socket ── Port ─ machine ─ conversation
//	   │               │                                                            │     (server.Line)
//	   │ rings,        └ pins pages, says where they are                            │
//	   ▼ data                                                                       ▼
//	guest RAM ◀──────────────── the same pages, mapped by the daemon ── Memory, arena, memory.Space
//	   bell port ═══════════════ QEMU ── unix socket ── the loop's poller
//
// A Port is the two sockets of one NIC: QEMU connects to both. A machine is what one agent has
// opened there; a new agent, or a new connection, ends it, and is answered when nothing of it is
// left. Commands and events go through the agent. Work requests, completions and data do not:
// queues and registered memory are pages of the machine, which the agent has pinned, and a program
// rings by writing to a port of its own, which the loop watches.
//
// Nothing that the machine says is trusted. An address is looked up in the table of its memory, so
// a machine that lies reaches its own memory only; which of its programs may reach what is for its
// agent to say. What a machine makes the daemon hold is on the account of whoever runs QEMU.
//
// Events. A process's unread events are taken back from its socket when their object goes
// (nic.EventSink). Here they are in the machine. So before a command that destroys something the
// agent is asked for them, and what is sent meanwhile waits (recall.go).
//
// Locks: machine.mu, then conversation.mu, then sink.mu, then link.mu.
package vm
