// Package protocol is the protocol between the daemon and its clients: the interposer inside an application, package verbs, and the vrdma
// command. It corresponds to shim/protocol.h; a test compiles that header and compares every constant and size with this package.
//
//	client                                            daemon (server)
//	   │  Hello{kind, token, vnic, label, program}        │
//	   ├──────────────────────────────────────────────────▶
//	   ◀─ Welcome{error, token, …} + descriptors ──────────┤
//	   │                                                  │
//	   │  PROCESS, UVERBS: Request + Extents + command    │
//	   ├──────────────────────────────────────────────────▶
//	   ◀─ Reply + Stores + FDs, descriptors beside it ─────┤
//	   │                                                  │
//	   │  NETLINK: a datagram of RDMA netlink             │
//	   ├──────────────────────────────────────────────────▶
//	   ◀─ the datagrams that answer it ────────────────────┤
//	   │                                                  │
//	   │  CONTROL: a JSON document (ControlRequest)       │
//	   ├──────────────────────────────────────────────────▶
//	   ◀─ JSON documents: Status, or TraceRecords … ───────┤
//
// One unix SOCK_SEQPACKET connection carries one conversation, one message per packet, in host byte order. There are two sockets,
// one for programs and one for control (place.go). Only CONTROL, which the interposer never opens, is JSON; a document longer
// than a packet is sent in pieces (see SendJSON).
//
// The package only encodes, decodes and moves messages. It must not contain rules about RDMA. A decoder never trusts a length:
// every count is checked against the received bytes.
package protocol
