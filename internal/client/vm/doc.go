// Package vm serves verbs to programs in virtual machines. It is the daemon's side; package vmagent is the side in the guest.
//
//	guest                                        host
//	program ─ shim ─ agent ══ virtio-serial ══ QEMU ── unix socket ── Sockets ─ guest ─ conversation
//	   │               │                                                            │     (server.ClientEnd)
//	   │ rings,        └ pins pages, says where they are                            │
//	   ▼ data                                                                       ▼
//	guest RAM ◀──────────────── the same pages, mapped by the daemon ── Memory, arena, memory.Space
//	   bell port ═══════════════ QEMU ── unix socket ── the loop's poller
//
// Sockets has the sockets of one NIC, to which QEMU connects. A guest is the state of one agent's connection. A new agent or a
// new connection ends it, and is answered when all of its state is gone. Commands and events go through the agent. Work requests,
// completions and data do not: queues and registered memory are pages of the guest, which the agent has pinned. A program rings
// a doorbell by writing to a port of its own, which the loop watches.
//
// The daemon does not trust the guest. It looks up every address in the table of the guest's memory, so a malicious guest
// reaches only its own memory. The agent decides which program may reach which pages. The resources of a guest are charged to
// the user that runs QEMU.
//
// Events: when an object of a process is destroyed, the daemon withdraws its unread events from the process's socket
// (nic.EventSink). Here they are in the guest. So before a command that destroys an object, the daemon asks the agent for them,
// and delays new events meanwhile (recall.go).
//
// Locks: guest.mu, then conversation.mu, then sink.mu, then link.mu.
package vm
