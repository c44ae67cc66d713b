package ucma

import (
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/cm/rdmacm"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/state"
)

// A host has one channel; it is its loop, its routes and the signal of its channel.
type host struct {
	loop  sync.Mutex
	cma   *rdmacm.CMA
	c     *rdmacm.Client
	ch    *rdmacm.Channel
	ended chan struct{} // gets a value after each OnLoop

	route func() (netip.Addr, error)
	reach func(timeout time.Duration) error
}

var (
	here  = netip.MustParseAddr("10.0.0.1")
	there = netip.MustParseAddr("10.0.0.9")
)

func newHost() *host {
	h := &host{ended: make(chan struct{}, 8)}
	h.cma = rdmacm.New(nic.New(nic.Config{Name: "rxe0", GIDs: []nic.GIDEntry{{GID: here.As16()}}}), h)
	h.route = func() (netip.Addr, error) { return here, nil }
	h.reach = func(time.Duration) error { return nil }
	return h
}

func (h *host) SendMAD(_, _ ib.GID, _ []byte)                            {}
func (h *host) Due(ib.Time)                                              {}
func (h *host) Now() ib.Time                                             { return 1 }
func (h *host) Raise() bool                                              { return true }
func (h *host) Lower()                                                   {}
func (h *host) Close()                                                   {}
func (h *host) Signal(uint32) (rdmacm.Signal, error)                     { return h, nil }
func (h *host) Account() *budget.Account                                 { return nil }
func (h *host) Aside(f func(Channel) error) error                        { return f(h) }
func (h *host) CMA() *rdmacm.CMA                                         { return h.cma }
func (h *host) NodeGUID() uint64                                         { return 7 }
func (h *host) Route(_, _ netip.Addr) (netip.Addr, error)                { return h.route() }
func (h *host) Reach(_, _ netip.Addr, timeout time.Duration) (err error) { return h.reach(timeout) }
func (h *host) Do(f func(*rdmacm.Channel) error) error {
	h.loop.Lock()
	defer h.loop.Unlock()
	return f(h.ch)
}

func (h *host) OnLoop(f func()) {
	h.loop.Lock()
	f()
	h.loop.Unlock()
	h.ended <- struct{}{}
}

// TestResume checks that a resolution that was under way when a client was frozen ends in the restored client as it would have ended.
func TestResume(t *testing.T) {
	noRoute := func() (netip.Addr, error) { return netip.Addr{}, syscall.ENETUNREACH }
	later := func(err error) func(time.Duration) error {
		return func(timeout time.Duration) error {
			if timeout == 0 || err == nil && timeout != 3*time.Second {
				return syscall.EAGAIN
			}
			return err
		}
	}
	for name, c := range map[string]struct {
		src    netip.AddrPort
		wait   time.Duration
		change func(*host)
		event  uint32
		status syscall.Errno
	}{
		"reachable":             {wait: 3 * time.Second, event: abi.CMEventAddrResolved},
		"reachable later":       {wait: 3 * time.Second, change: func(h *host) { h.reach = later(nil) }, event: abi.CMEventAddrResolved},
		"unreachable":           {wait: 3 * time.Second, change: func(h *host) { h.reach = later(syscall.ETIMEDOUT) }, event: abi.CMEventAddrError, status: syscall.ETIMEDOUT},
		"no route":              {wait: 3 * time.Second, change: func(h *host) { h.route = noRoute }, event: abi.CMEventAddrError, status: syscall.ENETUNREACH},
		"no route from address": {src: netip.AddrPortFrom(here, 0), change: func(h *host) { h.route = noRoute }, event: abi.CMEventAddrError, status: syscall.ETIMEDOUT},
	} {
		t.Run(name, func(t *testing.T) {
			old := newHost()
			old.c = old.cma.NewClient(1, "test")
			var err error
			if old.ch, err = old.c.NewChannel(func() (rdmacm.Signal, error) { return old, nil }); err != nil {
				t.Fatal(err)
			}
			blocked := make(chan struct{})
			calls := 0
			old.reach = func(time.Duration) error {
				if calls++; calls == 2 { // the first one does not wait
					<-blocked
				}
				return syscall.EAGAIN
			}
			id, err := old.ch.Create(5, abi.PSTCP, 0)
			if err != nil {
				t.Fatal(err)
			}
			call := Call{ch: old}
			if err := call.resolve(id.Name, c.src, netip.AddrPortFrom(there, 7000), uint32(c.wait/time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			b, err := state.Marshal(old.c.Freeze())
			if err != nil {
				t.Fatal(err)
			}
			st := new(rdmacm.ClientState)
			if err := state.Unmarshal(b, st); err != nil {
				t.Fatal(err)
			}
			h := newHost()
			if c.change != nil {
				c.change(h)
			}
			if h.c, err = h.cma.ThawClient(st, h); err != nil {
				t.Fatal(err)
			}
			h.ch = h.c.Channel(old.ch.Name)
			list := h.c.Resolving()
			if len(list) != 1 || list[0].Patience != c.wait {
				t.Fatalf("resolutions %+v, want one that may last %v", list, c.wait)
			}
			Resume(h, list[0])
			<-h.ended
			if e, err := h.ch.GetEvent(); err != nil || e.Event != c.event || int32(e.Status) != -int32(c.status) || e.UID != 5 {
				t.Errorf("event %+v, %v, want %d with %v", e, err, c.event, c.status)
			}
			close(blocked) // the old daemon resumes
			<-old.ended
			if e, err := old.ch.GetEvent(); err != nil || e.Event != abi.CMEventAddrError {
				t.Errorf("in the old daemon: %+v, %v", e, err)
			}
		})
	}
}
