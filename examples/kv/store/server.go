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

// A Config configures a server.
type Config struct {
	Keys     int // number of keys; 0: 32768
	MaxValue int // bytes; 0: 4096
	// CPU and Daemon, if set, return the processor time of the server's process and of the daemon in nanoseconds. Stats has it.
	CPU, Daemon func() uint64
}

// The default sizes of a store. The number of keys is that of the C lab.
const (
	defaultKeys     = 32 << 10
	defaultMaxValue = 4 << 10
	maxTable        = 1 << 32
)

// A Server has the table and answers messages.
type Server struct {
	cfg      Config
	dev      *verbs.Device
	pd       *verbs.PD
	mr       *verbs.MR // memory of the table
	m        *cm.Manager
	table    *table
	messages atomic.Uint64

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// NewServer returns a server whose table is in registered memory.
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
	// Clients may READ the table. The server writes it through the slice.
	if s.mr, err = s.pd.Alloc(tableSize(c.Keys, c.MaxValue), verbs.RemoteRead); err != nil {
		return nil, err
	}
	if s.m, err = cm.New(s.dev); err != nil {
		return nil, err
	}
	s.table = newTable(s.mr.Bytes(), c.Keys, c.MaxValue)
	return s, nil
}

// Listen accepts RDMA and TCP connections at the same address and port, and returns it. The ports of rdma_cm and TCP are different.
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

// Stats returns the statistics until now.
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

// maxMessage is the largest message of this store.
func (s *Server) maxMessage() int { return headSize + max(s.cfg.MaxValue, statsSize) }

// answer writes the reply over the request in room, which has maxMessage bytes. It returns the length of the reply.
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
