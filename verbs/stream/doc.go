// Package stream implements net.Conn and net.Listener over RDMA. It speaks the rsockets protocol, so its
// peers can be rstream, programs under `vrdma run --sockets`, or other Go programs. http.Server, crypto/tls
// and gRPC run over it as over TCP.
//
//	p, err := stream.Open(ctx, verbs.Options{})
//	l, err := p.Listen("127.0.0.1:8080")
//	http.Serve(l, nil)
//
//	c, err := p.Dial(ctx, "127.0.0.1:8080")
//
// The writer sends a message with an RDMA write into the peer's buffer; the immediate value is its length.
// The reader tells the writer when half of the buffer is free again:
//
//	writer                                                    reader
//	  │ write with immediate: DATA, n bytes                     │
//	  ├────────────────────────────────────────────────────────▶│ receive buffer, first half
//	  ├────────────────────────────────────────────────────────▶│ …and so on
//	  │ write with immediate: SGL, number of messages allowed;  │ the program has read one half
//	  │◀─ the written bytes are the address of the next half ───┤
//	  │                                    CTRL: shutdown, end  │
//
// The package has no background goroutines. A goroutine that waits in Read or Write processes the
// connection's completions, for the other direction too. An idle connection costs memory, but no goroutine
// and no descriptor.
package stream
