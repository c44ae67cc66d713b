package nic

import (
	"errors"
	"net/netip"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/client/eventfile"
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// fakeLoop is a loop that leads nowhere and remembers what it was asked.
type fakeLoop struct {
	loop   *Loop
	sent   []transport.Burst
	groups map[ib.GID]bool
	refuse error // what Join answers
}

func newFakeLoop() *fakeLoop { return &fakeLoop{loop: NewLoop(func() {}), groups: map[ib.GID]bool{}} }

func (l *fakeLoop) Adopt(*QP) Owner                         { return l }
func (l *fakeLoop) Loop() *Loop                             { return l.loop }
func (l *fakeLoop) Send(b *transport.Burst)                 { l.sent = append(l.sent, *b) }
func (l *fakeLoop) Connect(_, _ *ib.GID) (p transport.Path) { return p }
func (l *fakeLoop) Disconnect()                             {}
func (l *fakeLoop) Wake()                                   {}
func (l *fakeLoop) Now() ib.Time                            { return 1 }
func (l *fakeLoop) Forget()                                 {}
func (l *fakeLoop) Leave(g ib.GID)                          { delete(l.groups, g) }
func (l *fakeLoop) Join(g ib.GID) error {
	if l.refuse == nil {
		l.groups[g] = true
	}
	return l.refuse
}

// rig is a NIC with a loop of its own.
type rig struct {
	t    *testing.T
	nic  *NIC
	loop *fakeLoop
}

func newRig(t *testing.T, l Limits) *rig {
	r := &rig{t: t, loop: newFakeLoop()}
	r.nic = New(Config{Name: "rxe0", Limits: l, GIDs: []GIDEntry{{GID: netip.MustParseAddr("192.0.2.1").As16()}}})
	t.Cleanup(func() {
		if n := r.nic.Sessions(); n != 0 {
			t.Errorf("%d sessions are left", n)
		}
		if len(r.nic.qps) != 0 || len(r.nic.keys) != 0 || len(r.nic.mcast) != 0 || len(r.loop.groups) != 0 {
			t.Errorf("left: %d queue pairs, %d keys, %d groups, %d joined", len(r.nic.qps), len(r.nic.keys), len(r.nic.mcast), len(r.loop.groups))
		}
	})
	return r
}

// open opens the device; the session ends with the test.
func (r *rig) open() *Session {
	r.t.Helper()
	a, err := NewArena()
	if err != nil {
		r.t.Fatal(err)
	}
	space, err := memory.NewSpace(1 << 30)
	if err != nil {
		r.t.Fatal(err)
	}
	s, err := r.nic.Open(SessionOptions{Arena: a, Space: space, Pid: unix.Getpid(), Program: "test"})
	if err != nil {
		r.t.Fatal(err)
	}
	s.SetOwner(r.loop)
	r.t.Cleanup(func() { s.Close(); space.Close(); a.Close() })
	var end *os.File
	if err := s.CreateAsync(socket(&end)); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { end.Close() })
	return s
}

// socket opens a sink that is a socket; end becomes the client's.
func socket(end **os.File) func() (EventSink, error) {
	return func() (EventSink, error) {
		s, client, err := eventfile.New()
		*end = client
		return s, err
	}
}

// openChannel makes a completion channel and returns the client's descriptor besides.
func openChannel(t *testing.T, s *Session) (uint32, int, error) {
	t.Helper()
	var end *os.File
	id, err := s.CreateChannel(socket(&end))
	if err != nil {
		return 0, -1, err
	}
	t.Cleanup(func() { end.Close() })
	return id, int(end.Fd()), nil
}

// objects are one of each kind that others need.
type objects struct {
	s      *Session
	pd, cq uint32
}

func (r *rig) objects() objects {
	r.t.Helper()
	s := r.open()
	return objects{s: s, pd: must(s.AllocPD())(r.t), cq: must(s.CreateCQ(CQParams{CQE: 10, Channel: -1}))(r.t).Handle}
}

func (o objects) qp(t *testing.T, typ uint8) QPInfo {
	t.Helper()
	return must(o.s.CreateQP(QPParams{PD: o.pd, SendCQ: o.cq, RecvCQ: o.cq, Type: typ, Cap: QPCap{SendWR: 4, RecvWR: 4, SendSGE: 2, RecvSGE: 2}}))(t)
}

// mr registers n bytes at address start of the session's shared memory.
func (o objects) mr(t *testing.T, start, n uint64, access uint32) MRInfo {
	t.Helper()
	// The process has made the pages, as the shim does.
	if err := unix.Fallocate(int(o.s.Space.File().Fd()), 0, int64(start), int64(n)); err != nil {
		t.Fatal(err)
	}
	r, err := o.s.Space.Map(start, n, []memory.Extent{{Start: start, Offset: start, Length: n, Kind: memory.Own, Prot: memory.ProtRead | memory.ProtWrite}})
	if err != nil {
		t.Fatal(err)
	}
	return must(o.s.RegMR(MRParams{PD: o.pd, Start: start, HcaVA: start, Length: n, Access: access, Region: r}))(t)
}

// must is for calls that have to succeed.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// wants checks an errno; 0 is success.
func wants(t *testing.T, what string, err error, want syscall.Errno) {
	t.Helper()
	var got syscall.Errno
	if err != nil && !errors.As(err, &got) || got != want {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}
