// Ping sends messages to another ping and back, over RDMA, and prints how long that took. It is a
// static Go binary: no C library, no LD_PRELOAD.
//
//	ping -s                      # on one host; -l ADDRESS:PORT says where
//	ping 192.0.2.1:7500          # on another
//
// With -kernel the device is the kernel's rxe instead of a vrdma daemon's.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"time"

	"vrdma.dev/vrdma/verbs"
	"vrdma.dev/vrdma/verbs/cm"
)

func main() {
	server := flag.Bool("s", false, "answer pings, of one peer")
	listen := flag.String("l", ":7500", "where to answer")
	kernel := flag.Bool("kernel", false, "use the kernel's rxe")
	count := flag.Int("n", 1000, "how many pings")
	size := flag.Int("size", 64, "how many bytes each")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var o verbs.Options
	if *kernel {
		o.Kernel = "any"
	}
	err := run(ctx, o, *server, *listen, flag.Arg(0), *count, *size)
	if err != nil {
		fmt.Fprintln(os.Stderr, "ping:", err)
		os.Exit(1)
	}
}

// An end is one side: a device, its memory and the connection.
type end struct {
	cq   *verbs.CQ
	mr   *verbs.MR
	conn *cm.Conn
	size int
	wc   [4]verbs.WC
}

func run(ctx context.Context, o verbs.Options, server bool, listen, peer string, count, size int) error {
	if !server && peer == "" {
		return errors.New("whom? give ADDRESS:PORT, or -s to answer")
	}
	const most = 1 << 20
	if size < 1 || size > most || count < 1 {
		return errors.New("a size is from 1 to 1048576, a count at least 1")
	}
	if server {
		size = most // any size
	}
	dev, err := o.Open(ctx)
	if err != nil {
		return err
	}
	defer dev.Close()
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	e := &end{size: size}
	if e.cq, err = dev.CreateCQ(64); err != nil {
		return err
	}
	if e.mr, err = pd.Alloc(2*size, verbs.LocalWrite); err != nil {
		return err
	}
	defer e.mr.Close()
	m, err := cm.New(dev)
	if err != nil {
		return err
	}
	defer m.Close()
	cfg := cm.Config{PD: pd, QP: verbs.QPConfig{SendCQ: e.cq}, Prepare: e.receive}
	if server {
		return e.answer(ctx, m, listen, cfg)
	}
	if e.conn, err = m.Dial(ctx, peer, cfg); err != nil {
		return err
	}
	defer e.conn.Close()
	return e.ping(ctx, count)
}

// receive posts a receive into the second half of the memory.
func (e *end) receive(q *verbs.QP) error {
	return q.PostRecv(&verbs.RecvWR{SGL: []verbs.SGE{e.mr.Slice(e.size, e.size)}})
}

// send sends n bytes from offset off.
func (e *end) send(off, n int) error {
	return e.conn.QP().PostSend(&verbs.SendWR{Op: verbs.Send, Flags: verbs.Signaled, SGL: []verbs.SGE{e.mr.Slice(off, n)}})
}

// next waits for a message and returns its length.
func (e *end) next(ctx context.Context) (int, error) {
	for {
		n, err := e.cq.Next(ctx, e.wc[:])
		if err != nil {
			return 0, err
		}
		got := -1
		for i := range n {
			if err := e.wc[i].Err(); err != nil {
				return 0, err
			}
			if e.wc[i].Op == verbs.WCRecv {
				got = int(e.wc[i].Bytes)
			}
		}
		if got >= 0 {
			return got, nil
		}
	}
}

// answer sends messages back until the peer disconnects.
func (e *end) answer(ctx context.Context, m *cm.Manager, at string, cfg cm.Config) error {
	l, err := m.Listen(at, nil)
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Println("answering at", l.Addr())
	r, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	if e.conn, err = r.Accept(ctx, cfg); err != nil {
		return err
	}
	defer e.conn.Close()
	fmt.Println("pinged by", e.conn.RemoteAddr())
	for {
		n, err := e.next(ctx)
		if errors.Is(err, verbs.Flushed) {
			return nil // the peer has disconnected
		}
		if err != nil {
			return err
		}
		copy(e.mr.Bytes(), e.mr.Bytes()[e.size:e.size+n])
		if err := e.receive(e.conn.QP()); err != nil {
			return err
		}
		if err := e.send(0, n); err != nil {
			return err
		}
	}
}

// ping sends messages and checks the answers.
func (e *end) ping(ctx context.Context, count int) error {
	times := make([]time.Duration, 0, count)
	for i := range count {
		out, in := e.mr.Bytes()[:e.size], e.mr.Bytes()[e.size:]
		for k := range out {
			out[k] = byte(i + k)
		}
		start := time.Now()
		if err := e.send(0, e.size); err != nil {
			return err
		}
		n, err := e.next(ctx)
		if err != nil {
			return err
		}
		times = append(times, time.Since(start))
		if n != e.size || !bytes.Equal(out, in) {
			return fmt.Errorf("ping %d came back with other bytes", i)
		}
		if err := e.receive(e.conn.QP()); err != nil {
			return err
		}
	}
	slices.Sort(times)
	fmt.Printf("%d pings of %d bytes: %v in the middle, 99 %% within %v\n", count, e.size, times[count/2], times[count*99/100])
	return nil
}
