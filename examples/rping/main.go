// Rping is librdmacm's rping in Go, and talks to that, either way. The client says where its memory is;
// the server fetches it with an RDMA READ and puts it back with an RDMA WRITE.
//
//	rping -s 192.0.2.1:7174      # on one host; so does: rping -s -a 192.0.2.1
//	rping 192.0.2.1:7174         # on another;  so does: rping -c -a 192.0.2.1
//
// With -kernel the device is the kernel's rxe instead of a vrdma daemon's.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"vrdma.dev/vrdma/verbs"
	"vrdma.dev/vrdma/verbs/cm"
)

func main() {
	server := flag.Bool("s", false, "serve one client, at ADDRESS:PORT")
	kernel := flag.Bool("kernel", false, "use the kernel's rxe")
	count := flag.Int("n", 10, "how many pings a client sends")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var o verbs.Options
	if *kernel {
		o.Kernel = "any"
	}
	if err := run(ctx, o, *server, flag.Arg(0), *count); err != nil {
		fmt.Fprintln(os.Stderr, "rping:", err)
		os.Exit(1)
	}
}

const (
	size = 64 // of a ping, rping's default
	most = 64 << 10

	// Offsets in our memory. A message has the address, key and length of a buffer, in network byte order.
	inAt, outAt = 0, 64
	fromAt      = 4096
	toAt        = fromAt + most
	message     = 16
)

// An end is one side.
type end struct {
	cq   *verbs.CQ
	mr   *verbs.MR
	conn *cm.Conn
	come int // messages that came while waiting for another completion
}

func run(ctx context.Context, o verbs.Options, server bool, at string, count int) error {
	if at == "" {
		return errors.New("where? give ADDRESS:PORT")
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
	e := &end{}
	if e.cq, err = dev.CreateCQ(16); err != nil {
		return err
	}
	if e.mr, err = pd.Alloc(toAt+most, verbs.LocalWrite|verbs.RemoteRead|verbs.RemoteWrite); err != nil {
		return err
	}
	defer e.mr.Close()
	m, err := cm.New(dev)
	if err != nil {
		return err
	}
	defer m.Close()
	cfg := cm.Config{PD: pd, QP: verbs.QPConfig{SendCQ: e.cq}, Prepare: e.expect}
	if server {
		return e.serve(ctx, m, at, cfg)
	}
	if e.conn, err = m.Dial(ctx, at, cfg); err != nil {
		return err
	}
	defer e.conn.Close()
	return e.ping(ctx, count)
}

// IDs of work requests.
const (
	receive = iota
	request
)

// expect posts a receive for a message.
func (e *end) expect(q *verbs.QP) error {
	return q.PostRecv(&verbs.RecvWR{ID: receive, SGL: []verbs.SGE{e.mr.Slice(inAt, message)}})
}

// do posts a request and waits for its completion.
func (e *end) do(ctx context.Context, wr verbs.SendWR) error {
	wr.ID, wr.Flags = request, verbs.Signaled
	if err := e.conn.QP().PostSend(&wr); err != nil {
		return err
	}
	return e.await(ctx, request)
}

// await waits for a completion.
func (e *end) await(ctx context.Context, id uint64) error {
	for id != receive || e.come == 0 {
		var wc [1]verbs.WC
		if _, err := e.cq.Next(ctx, wc[:]); err != nil {
			return err
		}
		if err := wc[0].Err(); err != nil {
			return err
		}
		if wc[0].ID == receive {
			e.come++
		} else if id == request {
			return nil
		}
	}
	e.come--
	return nil
}

// tell sends a message with the address of n bytes of ours.
func (e *end) tell(ctx context.Context, at, n int) error {
	b := e.mr.Bytes()[outAt:]
	binary.BigEndian.PutUint64(b, e.mr.Addr(at))
	binary.BigEndian.PutUint32(b[8:], e.mr.RKey())
	binary.BigEndian.PutUint32(b[12:], uint32(n))
	return e.do(ctx, verbs.SendWR{Op: verbs.Send, SGL: []verbs.SGE{e.mr.Slice(outAt, message)}})
}

// heard waits for a message with the address of the peer's memory.
func (e *end) heard(ctx context.Context) (addr uint64, key uint32, n int, err error) {
	if err := e.await(ctx, receive); err != nil {
		return 0, 0, 0, err
	}
	b := e.mr.Bytes()[inAt:]
	addr, key, n = binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), int(binary.BigEndian.Uint32(b[12:]))
	return addr, key, n, e.expect(e.conn.QP())
}

// ping sends text that the server reads and writes back, count times.
func (e *end) ping(ctx context.Context, count int) error {
	from, to := e.mr.Bytes()[fromAt:fromAt+size], e.mr.Bytes()[toAt:toAt+size]
	for i := range count {
		n := copy(from, fmt.Sprintf("rdma-ping-%d: ", i))
		for k := n; k < size; k++ {
			from[k] = byte('A' + (i+k-n)%58)
		}
		from[size-1] = 0
		clear(to)
		for _, at := range []int{fromAt, toAt} { // the server reads the first and writes the second
			if err := e.tell(ctx, at, size); err != nil {
				return err
			}
			if _, _, _, err := e.heard(ctx); err != nil {
				return err
			}
		}
		if !bytes.Equal(from, to) {
			return fmt.Errorf("ping %d came back as %q, not %q", i, to, from)
		}
		fmt.Printf("ping data: %s\n", to[:size-1])
	}
	return nil
}

// serve is the server's side, until the client disconnects.
func (e *end) serve(ctx context.Context, m *cm.Manager, at string, cfg cm.Config) error {
	l, err := m.Listen(at, nil)
	if err != nil {
		return err
	}
	defer l.Close()
	r, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	if e.conn, err = r.Accept(ctx, cfg); err != nil {
		return err
	}
	defer e.conn.Close()
	for turn := 0; ; turn++ {
		addr, key, n, err := e.heard(ctx)
		if errors.Is(err, verbs.Flushed) {
			return nil // the client has disconnected
		}
		if err == nil && n > most {
			err = fmt.Errorf("a ping of %d bytes: at most %d are possible", n, most)
		}
		if err != nil {
			return err
		}
		op := []verbs.Op{verbs.Read, verbs.Write}[turn%2]
		if err := e.do(ctx, verbs.SendWR{Op: op, SGL: []verbs.SGE{e.mr.Slice(fromAt, n)}, RemoteAddr: addr, RKey: key}); err != nil {
			return err
		}
		if op == verbs.Read {
			fmt.Printf("server ping data: %s\n", bytes.TrimRight(e.mr.Bytes()[fromAt:fromAt+n], "\x00"))
		}
		if err := e.tell(ctx, fromAt, n); err != nil { // continue
			return err
		}
	}
}
