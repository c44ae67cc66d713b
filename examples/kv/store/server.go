package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"vrdma.dev/vrdma/verbs"
	"vrdma.dev/vrdma/verbs/cm"
)

// Config is what a server is made with.
type Config struct {
	Keys     int // how many; 0: 32768
	MaxValue int // bytes; 0: 4096
	// CPU and Daemon, if set, say how much processor time the server's process and the daemon have
	// used, in nanoseconds: Stats tells it to clients.
	CPU, Daemon func() uint64
}

// The sizes of a store that nobody has said anything about. The keys are as many as the C lab has.
const (
	defaultKeys     = 32 << 10
	defaultMaxValue = 4 << 10
	maxTable        = 1 << 32
)

// A Server has the table, and answers messages.
type Server struct {
	cfg      Config
	dev      *verbs.Device
	pd       *verbs.PD
	mr       *verbs.MR // the table's memory
	m        *cm.Manager
	table    *table
	messages atomic.Uint64

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// NewServer makes a server with its table in memory of a device.
func NewServer(ctx context.Context, o verbs.Options, c Config) (_ *Server, err error) {
	if c.Keys == 0 {
		c.Keys = defaultKeys
	}
	if c.MaxValue == 0 {
		c.MaxValue = defaultMaxValue
	}
	if c.Keys < 0 || c.MaxValue < 0 || c.MaxValue > MaxValue || c.Keys > maxTable/slotSize(c.MaxValue) {
		return nil, fmt.Errorf("a table of %d keys with values of %d bytes: values have up to %d bytes, and all together up to %d", c.Keys, c.MaxValue, MaxValue, maxTable)
	}
	s := &Server{cfg: c}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if s.dev, err = o.Open(ctx); err != nil {
		return nil, err
	}
	if s.pd, err = s.dev.AllocPD(); err != nil {
		return nil, err
	}
	// Clients may READ the table. We write it ourselves, through the slice.
	if s.mr, err = s.pd.Alloc(tableSize(c.Keys, c.MaxValue), verbs.RemoteRead); err != nil {
		return nil, err
	}
	if s.m, err = cm.New(s.dev); err != nil {
		return nil, err
	}
	s.table = newTable(s.mr.Bytes(), c.Keys, c.MaxValue)
	return s, nil
}

// Listen takes RDMA connections and TCP connections at the same address and port, and returns it. They
// do not collide: rdma_cm's ports are not TCP's.
func (s *Server) Listen(addr string) (string, error) {
	tcp, err := net.Listen("tcp", addr)
	if err != nil {
		return "", err
	}
	at := tcp.Addr().String()
	rdma, err := s.m.Listen(at, nil)
	if err != nil {
		tcp.Close()
		return "", err
	}
	s.wg.Add(3)
	go func() { defer s.wg.Done(); s.acceptTCP(tcp) }()
	go func() { defer s.wg.Done(); s.acceptRDMA(rdma) }()
	go func() { // ends both
		defer s.wg.Done()
		<-s.ctx.Done()
		tcp.Close()
		rdma.Close()
	}()
	return at, nil
}

// Stats are what it has done so far.
func (s *Server) Stats() Stats {
	st := Stats{Messages: s.messages.Load()}
	if s.cfg.CPU != nil {
		st.CPU = s.cfg.CPU()
	}
	if s.cfg.Daemon != nil {
		st.Daemon = s.cfg.Daemon()
	}
	return st
}

// Close ends all connections and frees the table.
func (s *Server) Close() error {
	s.cancel()
	s.wg.Wait()
	var errs []error
	if s.m != nil {
		errs = append(errs, s.m.Close())
	}
	if s.dev != nil {
		errs = append(errs, s.dev.Close())
	}
	if s.mr != nil {
		errs = append(errs, s.mr.Close())
	}
	return errors.Join(errs...)
}

// maxMessage is the longest message of this store.
func (s *Server) maxMessage() int { return headSize + max(s.cfg.MaxValue, statsSize) }

// answer makes the reply of a request, in the same buffer: room has the request at its beginning and
// maxMessage bytes in all. It returns the reply's length.
func (s *Server) answer(request, room []byte) int {
	m, err := parse(request)
	if err != nil {
		message(room).setHead(0, statusBad, 0, 0, 0)
		return headSize
	}
	op, key := m.op(), m.key()
	reply := message(room)
	var version uint64
	length := 0
	switch op {
	case opGet:
		s.messages.Add(1)
		length, version, err = s.table.get(key, room[headSize:])
	case opPut:
		s.messages.Add(1)
		version, err = s.table.put(key, m.value())
	case opStats:
		length = s.Stats().encode(room[headSize:])
	default:
		err = ErrBad
	}
	status := byte(statusOK)
	if err != nil {
		status, length = statusOf(err), 0
	}
	reply.setHead(op, status, key, version, length)
	return headSize + length
}
