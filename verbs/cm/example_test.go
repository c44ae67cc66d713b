package cm_test

import (
	"context"
	"fmt"
	"log"

	"vrdma.dev/vrdma/verbs"
	"vrdma.dev/vrdma/verbs/cm"
)

// A server and a client in one program; either could be a C program, on another host.
func Example() {
	ctx := context.Background()
	dev, err := verbs.Open(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	pd, err := dev.AllocPD()
	if err != nil {
		log.Fatal(err)
	}
	mr, err := pd.Alloc(4096, verbs.LocalWrite)
	if err != nil {
		log.Fatal(err)
	}
	defer mr.Close()
	m, err := cm.New(dev)
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	l, err := m.Listen("127.0.0.1:0", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()

	served := make(chan error, 1)
	go func() { served <- serve(ctx, l, pd, mr) }()

	cq, err := dev.CreateCQ(16)
	if err != nil {
		log.Fatal(err)
	}
	c, err := m.Dial(ctx, l.Addr().String(), cm.Config{PD: pd, QP: verbs.QPConfig{SendCQ: cq, MaxInline: 64}, Private: []byte("a client")})
	if err != nil {
		log.Fatal(err)
	}
	if err := c.QP().PostSend(&verbs.SendWR{Op: verbs.Send, Data: []byte("hello")}); err != nil {
		log.Fatal(err)
	}
	if err := <-served; err != nil {
		log.Fatal(err)
	}
	if err := c.Close(); err != nil {
		log.Fatal(err)
	}
	// Output: "a client" says "hello"
}

// serve takes one connection and one message.
func serve(ctx context.Context, l *cm.Listener, pd *verbs.PD, mr *verbs.MR) error {
	cq, err := pd.Device().CreateCQ(16)
	if err != nil {
		return err
	}
	r, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	c, err := r.Accept(ctx, cm.Config{
		PD: pd, QP: verbs.QPConfig{SendCQ: cq},
		Prepare: func(q *verbs.QP) error { return q.PostRecv(&verbs.RecvWR{SGL: []verbs.SGE{mr.Slice(0, 64)}}) },
	})
	if err != nil {
		return err
	}
	defer c.Close()
	var wc [1]verbs.WC
	if _, err := cq.Next(ctx, wc[:]); err != nil {
		return err
	}
	fmt.Printf("%q says %q\n", r.Private()[:8], mr.Bytes()[:wc[0].Bytes])
	return nil
}
