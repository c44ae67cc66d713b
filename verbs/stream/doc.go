// Package stream has net.Conn and net.Listener over RDMA. It speaks the protocol of rsockets, so a Go
// program talks to rstream, to programs under `vrdma run --sockets`, and to itself; http.Server,
// crypto/tls and gRPC run over it as over TCP.
//
//	p, err := stream.Open(ctx, verbs.Options{})
//	l, err := p.Listen("127.0.0.1:8080")
//	http.Serve(l, nil)
//
//	c, err := p.Dial(ctx, "127.0.0.1:8080")
//
// A message is written into the peer's buffer by an RDMA write whose immediate value says how long it
// is. The reader tells the writer when half of its buffer is free again:
//
//	writer                                                    reader
//	  │ write with immediate: DATA, n bytes                     │
//	  ├────────────────────────────────────────────────────────▶│ receive buffer, first half
//	  ├────────────────────────────────────────────────────────▶│ …and so on
//	  │ write with immediate: SGL, so many messages more;       │ the program has read half of it
//	  │◀─ the written bytes say where the next half is ─────────┤
//	  │                                    CTRL: shutdown, end  │
//
// Nothing runs in the background: whoever reads or writes and has to wait takes the connection's
// completions, for the other side of it too. An idle connection costs memory, no goroutine and no
// descriptor.
package stream
