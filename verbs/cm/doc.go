// Package cm connects queue pairs as librdmacm does: addresses are IP addresses and ports, and the
// other side may be a C program, on this host or another.
//
//	m, err := cm.New(dev)
//	l, err := m.Listen("127.0.0.1:7471", nil)
//	r, err := l.Accept(ctx)                       // a request, with the peer's private data
//	c, err := r.Accept(ctx, cm.Config{PD: pd, QP: verbs.QPConfig{SendCQ: cq}})
//
//	c, err := m.Dial(ctx, "127.0.0.1:7471", cm.Config{PD: pd, QP: …})
//	c.QP()                                        // ready to send
//
// A Manager is one channel of events for all of its connections: ten thousand of them cost one
// descriptor or two, and one goroutine.
package cm
