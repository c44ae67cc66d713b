package filecopy

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/verbs"
	"vrdma.dev/vrdma/verbs/cm"
)

// The published file transfer over rdma_cm, a sample program of 2010. One chunk of at most 10 MiB is in flight: reading, sending
// and writing never overlap.
//
//	server ── SEND MR {address, key} ──────▶ client
//	client ── WRITE_WITH_IMM file name ────▶ server     the immediate is the length, with the final zero
//	server ── SEND READY ──────────────────▶ client
//	client ── WRITE_WITH_IMM chunk ────────▶ server     …and READY again, until
//	client ── WRITE_WITH_IMM, 0 bytes ─────▶ server
//	server ── SEND DONE ───────────────────▶ client     which disconnects
//
// It has no key, no checksum and no resuming. A message has 24 bytes in the byte order of the host.
const (
	oneBuffer  = 10 << 20
	oneMessage = 24
	oneQueue   = 10
	oneName    = 256 // the longest file name, with the final zero
	// oneTime is how long a client may take for a chunk. This protocol has no keepalives.
	oneTime = time.Minute

	oneMR    = 1
	oneReady = 2
	oneDone  = 3
)

// A oneConn is a connection of that protocol.
type oneConn struct {
	c   *cm.Conn
	cq  *verbs.CQ
	mr  *verbs.MR // the buffer, the message to send, the message to receive
	wc  [oneQueue]verbs.WC
	got []verbs.WC // completions of receives
	out int        // uncompleted sends
}

const (
	oneOut = oneBuffer
	oneIn  = oneBuffer + oneMessage
)

func (d *device) newOneConn(prepare func(*oneConn, *verbs.QP) error) (*oneConn, cm.Config, error) {
	c := &oneConn{}
	var err error
	if c.cq, err = d.dev.CreateCQ(4 * oneQueue); err != nil {
		return nil, cm.Config{}, err
	}
	if c.mr, err = d.pd.Alloc(oneBuffer+2*oneMessage, verbs.LocalWrite|verbs.RemoteWrite); err != nil {
		c.cq.Close()
		return nil, cm.Config{}, err
	}
	return c, cm.Config{
		PD: d.pd, QP: verbs.QPConfig{SendCQ: c.cq, MaxSend: oneQueue, MaxRecv: oneQueue}, Reads: 1,
		Prepare: func(q *verbs.QP) error { return prepare(c, q) },
	}, nil
}

func (c *oneConn) close() {
	if c.c != nil {
		c.c.Close()
	}
	c.cq.Close()
	c.mr.Close()
}

// receive waits for the next completed receive. All sends have completed by then.
func (c *oneConn) receive(ctx context.Context) (verbs.WC, error) {
	for len(c.got) == 0 || c.out > 0 {
		n, err := c.cq.Next(ctx, c.wc[:])
		if err != nil {
			return verbs.WC{}, err
		}
		for _, w := range c.wc[:n] {
			if w.Status == verbs.Flushed {
				return verbs.WC{}, errors.New("the other side is gone")
			}
			if err := w.Err(); err != nil {
				return verbs.WC{}, err
			}
			if w.Op >= verbs.WCRecv {
				c.got = append(c.got, w)
			} else {
				c.out--
			}
		}
	}
	w := c.got[0]
	c.got = c.got[1:]
	return w, nil
}

func (c *oneConn) post(wr verbs.SendWR) error {
	wr.Flags = verbs.Signaled
	c.out++
	return c.c.QP().PostSend(&wr)
}

// tell sends a message.
func (c *oneConn) tell(id uint32) error {
	b := c.mr.Bytes()[oneOut : oneOut+oneMessage]
	clear(b)
	binary.NativeEndian.PutUint32(b, id)
	if id == oneMR {
		binary.NativeEndian.PutUint64(b[8:], c.mr.Addr(0))
		binary.NativeEndian.PutUint32(b[16:], c.mr.RKey())
	}
	return c.post(verbs.SendWR{Op: verbs.Send, SGL: []verbs.SGE{c.mr.Slice(oneOut, oneMessage)}})
}

// PutOne sends a file with the published protocol.
func PutOne(ctx context.Context, p Transport, addr, path, name string, progress *Progress) error {
	d, ok := p.transport.(*device)
	if !ok {
		return errors.New("the published protocol is RDMA's: it does not go over TCP")
	}
	if len(name) >= oneName {
		return fmt.Errorf("the name %s has %d bytes: the published protocol has room for %d", name, len(name), oneName-1)
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil {
		progress.found(uint64(info.Size()), false)
	}
	listen := func(c *oneConn, q *verbs.QP) error {
		return q.PostRecv(&verbs.RecvWR{SGL: []verbs.SGE{c.mr.Slice(oneIn, oneMessage)}})
	}
	c, cfg, err := d.newOneConn(listen)
	if err != nil {
		return err
	}
	defer c.close()
	if c.c, err = d.m.Dial(ctx, addr, cfg); err != nil {
		return err
	}
	return c.put(ctx, f, name, progress, listen)
}

// put is the client's side.
func (c *oneConn) put(ctx context.Context, f *os.File, name string, progress *Progress, listen func(*oneConn, *verbs.QP) error) error {
	var peer window
	named, ended := false, false
	for {
		w, err := c.receive(ctx)
		if err != nil {
			return err
		}
		if w.Bytes != oneMessage {
			return violation("a message of %d bytes, not %d: is it a server of the published protocol?", w.Bytes, oneMessage)
		}
		b := c.mr.Bytes()[oneIn : oneIn+oneMessage]
		id := binary.NativeEndian.Uint32(b)
		if id == oneMR {
			peer = window{Addr: binary.NativeEndian.Uint64(b[8:]), RKey: binary.NativeEndian.Uint32(b[16:])}
		}
		if err := listen(c, c.c.QP()); err != nil {
			return err
		}
		n := 0
		switch {
		case id == oneMR && !named:
			n = copy(c.mr.Bytes(), name+"\x00")
			named = true
		case id == oneReady && named && !ended:
			if n, err = io.ReadFull(f, c.mr.Bytes()[:oneBuffer]); err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
				return err
			}
			ended = n == 0
			progress.moved(n)
		case id == oneDone && ended:
			return nil
		default:
			return violation("message %d where it is not its turn", id)
		}
		wr := verbs.SendWR{Op: verbs.WriteImm, Imm: uint32(n), RemoteAddr: peer.Addr, RKey: peer.RKey}
		if n > 0 {
			wr.SGL = []verbs.SGE{c.mr.Slice(0, n)}
		}
		if err := c.post(wr); err != nil {
			return err
		}
	}
}

// ServeOne receives files with the published protocol into a directory until ctx ends.
func (v *Server) ServeOne(ctx context.Context, p Transport, addr string, ready func(addr string)) error {
	d, ok := p.transport.(*device)
	if !ok {
		return errors.New("the published protocol is RDMA's: it does not go over TCP")
	}
	l, err := d.m.Listen(addr, nil)
	if err != nil {
		return err
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel()
	room := make(chan struct{}, maxStrangers)
	ready(l.Addr().String())
	for {
		r, err := l.Accept(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			if v.exhausted(ctx, err) {
				continue
			}
			return err
		}
		select {
		case room <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		tasks.Go(func() {
			defer func() { <-room }()
			who := r.RemoteAddr().Addr()
			if name, err := v.takeOne(ctx, d, r); err != nil && ctx.Err() == nil {
				v.Log("%s: %s: %v", who, name, err)
			} else if err == nil {
				v.Log("%s: %s: received", who, name)
			}
		})
	}
}

// takeOne receives one file.
func (v *Server) takeOne(ctx context.Context, d *device, r *cm.Request) (name string, err error) {
	listen := func(_ *oneConn, q *verbs.QP) error { return q.PostRecv(&verbs.RecvWR{}) }
	c, cfg, err := d.newOneConn(listen)
	if err != nil {
		r.Reject(nil)
		return "", err
	}
	defer c.close()
	first, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	if c.c, err = r.Accept(first, cfg); err != nil {
		return "", err
	}
	if err := c.tell(oneMR); err != nil {
		return "", err
	}
	if name, err = c.name(first); err != nil {
		return name, err
	}
	dir, err := v.Files.open(".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return name, err
	}
	defer dir.Close()
	out, err := (&target{dir: dir}).create(name, math.MaxUint64, v.Overwrite)
	if err != nil {
		return name, err
	}
	if err = out.f.Truncate(0); err == nil { // it cannot be resumed
		err = c.take(ctx, cmp.Or(v.chunkTime, oneTime), out, listen)
	}
	if err == nil {
		err = out.commit(&meta{Mode: 0o644}, false)
	}
	if err != nil {
		out.remove()
		return name, err
	}
	if err := c.tell(oneDone); err != nil {
		return name, err
	}
	last, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	c.receive(last) // the client disconnects
	return name, nil
}

// chunk waits for the client's next write.
func (c *oneConn) chunk(ctx context.Context) ([]byte, error) {
	w, err := c.receive(ctx)
	if err != nil {
		return nil, err
	}
	if w.Op != verbs.WCRecvImm || w.Imm > oneBuffer || w.Imm != w.Bytes {
		return nil, violation("%d bytes, and says that they are %d", w.Bytes, w.Imm)
	}
	return c.mr.Bytes()[:w.Imm], nil
}

// chunkWithin gives up a client that is silent for this long.
func (c *oneConn) chunkWithin(ctx context.Context, most time.Duration) ([]byte, error) {
	limit, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	b, err := c.chunk(limit)
	if err != nil && limit.Err() != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("no chunk came for %v", most)
	}
	return b, err
}

// name waits for the file's name.
func (c *oneConn) name(ctx context.Context) (string, error) {
	b, err := c.chunk(ctx)
	if err != nil {
		return "", err
	}
	if len(b) < 2 || len(b) > oneName {
		return "", violation("a name of %d bytes", len(b))
	}
	name := string(b[:len(b)-1])
	for _, r := range name {
		if r == '/' {
			return name, violation("the name %q, which is a path", name)
		}
	}
	return name, checkPath(name)
}

// take writes chunks to the file, one after the other.
func (c *oneConn) take(ctx context.Context, most time.Duration, out *partial, listen func(*oneConn, *verbs.QP) error) error {
	for at := int64(0); ; {
		if err := listen(c, c.c.QP()); err != nil {
			return err
		}
		if err := c.tell(oneReady); err != nil {
			return err
		}
		b, err := c.chunkWithin(ctx, most)
		if err != nil {
			return err
		}
		if len(b) == 0 {
			return nil
		}
		if _, err := out.f.WriteAt(b, at); err != nil {
			return err
		}
		at += int64(len(b))
	}
}
