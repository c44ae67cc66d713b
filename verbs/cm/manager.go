package cm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"syscall"
	"time"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/verbs"
	"vrdma.dev/vrdma/verbs/internal/ipc"
)

// A Manager makes connections with one device. Any goroutine may use it.
type Manager struct {
	dev *verbs.Device
	ch  ipc.Channel

	mu     sync.Mutex // held during a command
	buf    []byte     // guarded by mu
	closed bool       // guarded by mu
	lastID uint64     // guarded by mu

	idMu sync.Mutex
	ids  map[uint32]*identifier // by the device's identifier
	uids map[uint64]*identifier // by our own number

	ended chan struct{} // closed when the event channel ends
}

// New creates a manager for the connections of a device.
func New(dev *verbs.Device) (*Manager, error) {
	ch, err := ipc.Of(dev).OpenChannel()
	if err != nil {
		return nil, fault("open the connection manager", err)
	}
	m := &Manager{dev: dev, ch: ch, ids: make(map[uint32]*identifier), uids: make(map[uint64]*identifier), ended: make(chan struct{})}
	runtime.AddCleanup(m, func(c ipc.Channel) { c.Unmap() }, ch)
	go m.read()
	return m, nil
}

// Close closes all connections and listeners.
func (m *Manager) Close() error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil
	}
	m.closed = true
	err := m.ch.Close()
	m.mu.Unlock()
	<-m.ended
	return fault("close the connection manager", err)
}

// fault wraps an error in a *verbs.Error.
func fault(op string, err error) error {
	if err == nil {
		return nil
	}
	var e *verbs.Error
	if errors.As(err, &e) {
		return err
	}
	return &verbs.Error{Op: op, Err: err, Advice: advice(err)}
}

func advice(err error) string {
	var late *lateError
	switch {
	case errors.As(err, &late):
		return late.during.advice
	case errors.Is(err, syscall.EADDRINUSE):
		return "another listener has the port: choose another, or 0 for a free one"
	case errors.Is(err, syscall.EADDRNOTAVAIL), errors.Is(err, syscall.ENODEV):
		return "it is no address of this device: Device.GIDs lists them"
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ETIMEDOUT):
		return "nobody answers at that address"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nobody listens at that port, or the peer refused"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.ECONNABORTED):
		return "the peer has gone, or did not wait as long: try again"
	}
	return ""
}

// exec runs a command and decodes the response, if there is one, into resp.
func exec[Q, R abi.Struct](m *Manager, cmd uint32, req *Q, resp *R) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return verbs.ErrClosed
	}
	size := 0
	if resp != nil {
		size = abi.Size[R]()
		clear(m.ch.Scratch().Mem[:size])
	}
	m.buf = abi.Encode(m.buf[:0], &abi.CMCmdHeader{Cmd: cmd, In: uint16(abi.Size[Q]()), Out: uint16(size)})
	m.buf = abi.Encode(m.buf, req)
	if err := m.ch.Command(m.buf, nil); err != nil {
		return err
	}
	if resp != nil {
		abi.Decode(m.ch.Scratch().Mem[:size], resp)
	}
	return nil
}

// tell runs a command that has no response.
func tell[Q abi.Struct](m *Manager, cmd uint32, req *Q) error {
	return exec(m, cmd, req, (*abi.CMDestroyIDResp)(nil))
}

func (m *Manager) response() uint64 { return uint64(m.ch.Scratch().At) }

// An identifier is an rdma_cm id: a connection, a request or a listener.
type identifier struct {
	m      *Manager
	id     uint32
	uid    uint64
	events chan abi.CMEventResp // events that a goroutine waits for, in order
	gone   chan struct{}        // closed when the connection has ended
	why    error                // set before gone is closed
	once   sync.Once
	left   sync.Once
	met    bool   // used by dispatch only: the peer has accepted, or the connection is complete
	ending func() // guarded by Manager.idMu; called at the end of the connection; may be nil
}

// backlog is the maximum number of requests that wait for Accept.
const backlog = 1024

func (m *Manager) newUID() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lastID++
	return m.lastID
}

// create creates an identifier in a port space.
func (m *Manager) create(ps uint16, typ verbs.Type, room int) (*identifier, error) {
	i := &identifier{m: m, uid: m.newUID(), events: make(chan abi.CMEventResp, room), gone: make(chan struct{})}
	var r abi.CMCreateIDResp
	if err := exec(m, abi.CMCmdCreateID, &abi.CMCreateID{UID: i.uid, Response: m.response(), PS: ps, QPType: uint8(typ)}, &r); err != nil {
		return nil, err
	}
	i.id = r.ID
	m.adopt(i)
	return i, nil
}

func (m *Manager) adopt(i *identifier) {
	m.idMu.Lock()
	defer m.idMu.Unlock()
	m.ids[i.id], m.uids[i.uid] = i, i
}

// end marks the connection as ended and stores the reason.
func (i *identifier) end(why error) {
	i.once.Do(func() {
		i.why = why
		close(i.gone)
	})
}

// destroy destroys the identifier.
func (i *identifier) destroy() (err error) {
	i.left.Do(func() {
		i.m.idMu.Lock()
		delete(i.m.ids, i.id)
		delete(i.m.uids, i.uid)
		i.m.idMu.Unlock()
		var r abi.CMDestroyIDResp
		err = exec(i.m, abi.CMCmdDestroyID, &abi.CMDestroyID{Response: i.m.response(), ID: i.id}, &r)
		if errors.Is(err, verbs.ErrClosed) || errors.Is(err, verbs.ErrGone) {
			err = nil
		}
		i.end(verbs.ErrClosed)
	})
	return err
}

// read reads events and passes each to its identifier.
func (m *Manager) read() {
	defer func() {
		m.idMu.Lock()
		for _, i := range m.ids {
			i.end(verbs.ErrClosed)
		}
		m.idMu.Unlock()
		close(m.ended)
	}()
	for {
		var e abi.CMEventResp
		err := exec(m, abi.CMCmdGetEvent, &abi.CMGetEvent{Response: m.response()}, &e)
		switch {
		case err == nil:
			m.dispatch(&e)
		case errors.Is(err, syscall.EAGAIN):
			if m.ch.Wait() != nil {
				return
			}
		default:
			return
		}
	}
}

func (m *Manager) dispatch(e *abi.CMEventResp) {
	m.idMu.Lock()
	i := m.ids[e.ID]
	if e.Event == abi.CMEventConnectRequest {
		i = m.uids[e.UID] // a request: e.ID is the new identifier, e.UID names the listener
	}
	var ending func()
	if i != nil {
		ending = i.ending
	}
	m.idMu.Unlock()
	switch {
	case i == nil && e.Event == abi.CMEventConnectRequest:
		m.drop(e.ID)
	case i == nil:
	case e.Event == abi.CMEventDisconnected || e.Event == abi.CMEventTimewaitExit || e.Event == abi.CMEventDeviceRemoval ||
		e.Event == abi.CMEventRejected && i.met:
		// A peer that ends before our RTU has arrived rejects a connection that is complete here.
		if i.end(syscall.ECONNRESET); ending != nil {
			ending()
		}
	default:
		i.met = i.met || e.Event == abi.CMEventConnectResponse || e.Event == abi.CMEventEstablished
		select {
		case i.events <- *e:
		default: // the listener's queue is full
			if e.Event == abi.CMEventConnectRequest {
				m.drop(e.ID)
			}
		}
	}
}

// drop destroys the identifier of a request that no goroutine will answer.
func (m *Manager) drop(id uint32) {
	var r abi.CMDestroyIDResp
	_ = exec(m, abi.CMCmdDestroyID, &abi.CMDestroyID{Response: m.response(), ID: id}, &r)
}

// next waits for an event.
func (i *identifier) next(ctx context.Context) (abi.CMEventResp, error) {
	select {
	case e := <-i.events:
		return e, nil
	default:
	}
	select {
	case e := <-i.events:
		return e, nil
	case <-i.gone:
		return abi.CMEventResp{}, i.why
	case <-ctx.Done():
		return abi.CMEventResp{}, ctx.Err()
	}
}

// expect waits for one event of type want. Any other event is returned as an error.
func (i *identifier) expect(ctx context.Context, want uint32) (abi.CMEventResp, error) {
	e, err := i.next(ctx)
	if err == nil && e.Event != want {
		err = failure(&e)
	}
	return e, err
}

// errStale is the error for a connection that the peer has abandoned, for instance after waiting too long
// for our answer.
var errStale = fmt.Errorf("the connection is gone: %w", syscall.EINVAL)

// stale maps EINVAL to errStale, for a command that is valid unless the connection is gone.
func stale(err error) error {
	if errors.Is(err, syscall.EINVAL) {
		return errStale
	}
	return err
}

// over returns err, or, if err is errStale, the reason why the connection ended. The event with the reason
// is present already or follows immediately.
func (i *identifier) over(err error) error {
	if !errors.Is(err, errStale) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	switch e, why := i.next(ctx); {
	case why == nil:
		return failure(&e)
	case ctx.Err() == nil:
		return why
	}
	return syscall.ECONNRESET
}

// A RejectedError says that the peer refused the connection.
type RejectedError struct {
	Reason      int // IBA reject reason; 28: the peer's program rejected; 8: no listener
	PrivateData []byte
}

func (e *RejectedError) Error() string {
	if e.Reason == consumerReject {
		return "the peer rejected the connection"
	}
	return fmt.Sprintf("the connection was rejected, reason %d", e.Reason)
}

// Unwrap returns ECONNREFUSED.
func (e *RejectedError) Unwrap() error { return syscall.ECONNREFUSED }

const consumerReject = 28

// failure converts an unexpected event into an error.
func failure(e *abi.CMEventResp) error {
	switch e.Event {
	case abi.CMEventRejected:
		var p abi.CMConnParam
		abi.Decode(e.Param[:], &p)
		return &RejectedError{Reason: int(int32(e.Status)), PrivateData: append([]byte(nil), p.PrivateData[:p.PrivateDataLen]...)}
	case abi.CMEventUnreachable:
		return syscall.ETIMEDOUT
	}
	if n := int32(e.Status); n < 0 {
		return syscall.Errno(-n)
	}
	return fmt.Errorf("event %d, status %d", e.Event, int32(e.Status))
}

// resolveTime limits the resolution of an address if the context has no deadline.
const resolveTime = 5 * time.Second

// patience returns the time limit for the device, in milliseconds.
func patience(ctx context.Context) uint32 {
	if t, ok := ctx.Deadline(); ok {
		return uint32(min(max(time.Until(t), time.Millisecond), time.Minute).Milliseconds())
	}
	return uint32(resolveTime.Milliseconds())
}

// parse parses an address and resolves a host name.
func parse(ctx context.Context, s string) (netip.AddrPort, error) {
	if a, err := netip.ParseAddrPort(s); err == nil {
		return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()), nil
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return netip.AddrPort{}, err
	}
	n, err := net.DefaultResolver.LookupPort(ctx, "tcp", port)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if host == "" {
		return netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(n)), nil
	}
	list, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	return netip.AddrPortFrom(list[0].Unmap(), uint16(n)), nil
}
