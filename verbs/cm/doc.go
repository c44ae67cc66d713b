// Package cm connects queue pairs as librdmacm does. Addresses are IP addresses and ports. The peer may be
// a C program, on this host or on another.
//
//	m, err := cm.New(dev)
//	l, err := m.Listen("127.0.0.1:7471", nil)
//	r, err := l.Accept(ctx)                       // a request, with the peer's private data
//	c, err := r.Accept(ctx, cm.Config{PD: pd, QP: verbs.QPConfig{SendCQ: cq}})
//
//	c, err := m.Dial(ctx, "127.0.0.1:7471", cm.Config{PD: pd, QP: …})
//	c.QP()                                        // ready to send
//
// A Manager has one event channel for all of its connections. Ten thousand connections need one or two
// descriptors and one goroutine.
package cm
