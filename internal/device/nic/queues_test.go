package nic

import (
	"encoding/binary"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/device/transport"
)

// readEvents takes what can be read from a client's descriptor now.
func readEvents(fd int) (out []uint64) {
	var b [32]byte
	for {
		n, _, err := unix.Recvfrom(fd, b[:], unix.MSG_DONTWAIT)
		if err != nil || n <= 0 {
			return out
		}
		out = append(out, binary.NativeEndian.Uint64(b[:]))
	}
}

// An armed queue gives one event: for every completion, or only for solicited ones and
// errors. Arming for less never takes back what was asked before.
func TestNotification(t *testing.T) {
	r := newRig(t, DefaultLimits)
	s := r.open()
	ch, fd, err := openChannel(t, s)
	wants(t, "CreateChannel", err, 0)
	h := must(s.CreateCQ(CQParams{CQE: 100, Channel: int32(ch), UserHandle: 77}))(t).Handle
	c, _ := s.cqs.get(h)
	const all, solicited = false, true
	for _, tc := range []struct {
		name string
		arm  []bool
		push completion
		want int
	}{
		{"not armed", nil, completion{solicited: true}, 0},
		{"armed", []bool{all}, completion{}, 1},
		{"armed twice", []bool{all, all}, completion{}, 1},
		{"armed for solicited, one that is not", []bool{solicited}, completion{}, 0},
		{"still armed for solicited, one that is", nil, completion{solicited: true}, 1},
		{"armed for solicited, an error", []bool{solicited}, completion{status: transport.WRFlushErr}, 1},
		{"armed for all, then for solicited", []bool{all, solicited}, completion{}, 1},
		{"armed for solicited, then for all", []bool{solicited, all}, completion{}, 1},
		{"once only", nil, completion{solicited: true}, 0},
	} {
		for _, a := range tc.arm {
			wants(t, "ReqNotify", s.ReqNotify(h, a), 0)
		}
		c.push(&tc.push)
		got := readEvents(fd)
		if len(got) != tc.want || tc.want == 1 && got[0] != 77 {
			t.Errorf("%s: events %v, want %d", tc.name, got, tc.want)
		}
	}
	wants(t, "a queue that is not there", s.ReqNotify(99, all), syscall.ENOENT)
	// Two events, of which the client reads one: it will acknowledge that one.
	for range 2 {
		s.ReqNotify(h, all)
		c.push(&completion{})
	}
	var b [8]byte
	unix.Read(fd, b[:])
	comp, _, err := s.DestroyCQ(h)
	wants(t, "DestroyCQ", err, 0)
	if want := uint32(6 + 1); comp != want {
		t.Errorf("%d events reported, want %d: those that were read", comp, want)
	}
	if got := readEvents(fd); len(got) != 0 {
		t.Errorf("events of a queue that is gone: %v", got)
	}
}

// A full queue loses the completion, says so once, and a client that has read goes on.
func TestOverrun(t *testing.T) {
	r := newRig(t, DefaultLimits)
	s := r.open()
	info := must(s.CreateCQ(CQParams{CQE: 3, Channel: -1}))(t)
	c, _ := s.cqs.get(info.Handle)
	for i := range info.CQE + 2 {
		c.push(&completion{wrID: uint64(i)})
	}
	if c.prod != info.CQE || !c.overrun || c.async != 1 {
		t.Errorf("%d completions in a queue of %d, overrun %v, %d events; want a full queue and one event", c.prod, info.CQE, c.overrun, c.async)
	}
	shared32(c.ring.mem, abi.QueueConsumerIndex).Store(2) // the client has read two
	c.push(&completion{wrID: 100})
	if c.prod != info.CQE+1 {
		t.Error("a queue with room again takes nothing")
	}
}

// Resizing moves the completions that the client has not read, in order.
func TestResizeCQ(t *testing.T) {
	r := newRig(t, DefaultLimits)
	s := r.open()
	info := must(s.CreateCQ(CQParams{CQE: 7, Channel: -1}))(t)
	c, _ := s.cqs.get(info.Handle)
	for i := range uint32(7) {
		c.push(&completion{wrID: uint64(100 + i)})
	}
	shared32(c.ring.mem, abi.QueueConsumerIndex).Store(2)
	_, err := s.ResizeCQ(info.Handle, 4)
	wants(t, "smaller than what is held", err, syscall.EINVAL)
	_, err = s.ResizeCQ(info.Handle, 0)
	wants(t, "to nothing", err, syscall.EINVAL)
	bigger := must(s.ResizeCQ(info.Handle, 60))(t)
	if bigger.CQE < 60 || c.ring.consumer() != 0 || c.ring.producer() != 5 {
		t.Errorf("room for %d, indices %d and %d; want 60, 0, 5", bigger.CQE, c.ring.consumer(), c.ring.producer())
	}
	for i := range uint32(5) {
		if got := binary.NativeEndian.Uint64(c.ring.slot(i)); got != uint64(102+i) {
			t.Errorf("completion %d is %d, want %d", i, got, 102+i)
		}
	}
}

// A shared receive queue tells once that it fell below its limit, and resizing keeps what
// is posted.
func TestSharedReceives(t *testing.T) {
	r := newRig(t, DefaultLimits)
	o := r.objects()
	info := must(o.s.CreateSRQ(SRQParams{PD: o.pd, MaxWR: 10, UserHandle: 5}))(t)
	q, _ := o.s.srqs.get(info.Handle)
	for i := range 6 {
		binary.NativeEndian.PutUint64(q.ring.slot(uint32(i)), uint64(40+i))
	}
	shared32(q.ring.mem, abi.QueueProducerIndex).Store(6)
	for name, c := range map[string]struct{ mask, wr, limit uint32 }{
		"an unknown attribute":         {4, 0, 0},
		"a limit above the size":       {abi.SRQMaskLimit, 0, 100},
		"smaller than what is posted":  {abi.SRQMaskMaxWR, 5, 0},
		"no size":                      {abi.SRQMaskMaxWR, 0, 0},
		"larger than the device's max": {abi.SRQMaskMaxWR, DefaultLimits.SRQWR + 1, 0},
	} {
		_, _, err := o.s.ModifySRQ(info.Handle, c.mask, c.wr, c.limit)
		wants(t, name, err, syscall.EINVAL)
	}
	if _, resized, err := o.s.ModifySRQ(info.Handle, abi.SRQMaskMaxWR|abi.SRQMaskLimit, 100, 4); err != nil || !resized {
		t.Fatalf("resized %v: %v", resized, err)
	}
	var w transport.RecvWQE
	for i := range 6 {
		if !q.take(&w) || w.WRID != uint64(40+i) {
			t.Fatalf("receive %d is %d, want %d", i, w.WRID, 40+i)
		}
		want := uint32(0)
		if i >= 2 { // fewer than 4 are left
			want = 1
		}
		if q.events != want {
			t.Errorf("after %d: %d limit events, want %d", i+1, q.events, want)
		}
	}
	if q.take(&w) {
		t.Error("a receive out of nowhere")
	}
	if a := must(o.s.QuerySRQ(info.Handle))(t); a.MaxWR < 100 || a.Limit != 0 {
		t.Errorf("attributes %+v: the limit fires once", a)
	}
}

// Events that find the descriptor full wait, in order, and are withdrawn with their object.
func TestEventsWait(t *testing.T) {
	r := newRig(t, DefaultLimits)
	s := r.open()
	ch, fd, err := openChannel(t, s)
	wants(t, "CreateChannel", err, 0)
	q, _ := s.channels.get(ch)
	const n = 5000
	for i := range uint64(n) {
		q.post(compEvent(i % 2))
	}
	if !r.loop.loop.Troubled() {
		t.Fatal("5000 events fit into a descriptor that nobody reads")
	}
	if got := q.withdraw(n, func(e *event) bool { return e.element() == 1 }); got != n/2 {
		t.Errorf("%d events withdrawn, want %d", got, n/2)
	}
	read := 0
	for range n {
		got := readEvents(fd)
		for _, v := range got {
			if v != 0 {
				t.Fatalf("an event that was withdrawn: %d", v)
			}
		}
		read += len(got)
		if r.loop.loop.VisitTroubled(1000); !r.loop.loop.Troubled() && len(got) == 0 {
			break
		}
	}
	if read != n/2 {
		t.Errorf("%d events read, want %d", read, n/2)
	}
}
