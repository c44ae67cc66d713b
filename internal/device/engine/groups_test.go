package engine

import (
	"encoding/binary"
	"testing"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/ib"
)

// TestGroupCostsItsMembers: a datagram to a group costs its sender's turn as much as all of its copies.
func TestGroupCostsItsMembers(t *testing.T) {
	const ud, members, datagrams = 4, 40, 500
	group := ib.GID{10: 0xff, 11: 0xff, 12: 239, 15: 9}
	e := newEngine(t)
	c := newClient(t, e)
	q := c.newQP(ud)
	var ah uint32
	c.do(func() (err error) {
		s := c.s
		for i := range members {
			h := q.info.Handle
			if i > 0 {
				info, err := s.CreateQP(nic.QPParams{PD: 0, SendCQ: 0, RecvCQ: 0, Type: ud})
				if err != nil {
					return err
				}
				h = info.Handle
			}
			for _, to := range []struct {
				mask ib.AttrMask
				attr nic.QPAttr
			}{{1 | 16 | 32 | 64, nic.QPAttr{State: 1, PortNum: 1, QKey: 7}}, {1, nic.QPAttr{State: 2}}, {1 | 1<<16, nic.QPAttr{State: 3}}} {
				if err := s.ModifyQP(h, to.mask, &to.attr); err != nil {
					return err
				}
			}
			if err := s.AttachMcast(h, group, 0); err != nil {
				return err
			}
		}
		_, ah, err = s.CreateAH(0, nic.AHAttr{DGID: group, IsGlobal: true, PortNum: 1})
		return err
	})
	halt(e)
	for range datagrams {
		q.write(wr{op: opSend, n: 8, remote: ib.EveryQP | 7<<32})
		binary.NativeEndian.PutUint32(q.sq.slot(q.posted - 1)[36:], ah)
	}
	q.ring()
	before := uint64(0)
	for turns := 1; before < datagrams*members; turns++ {
		if turns > 2*datagrams {
			t.Fatalf("%d of %d copies arrived", before, datagrams*members)
		}
		if e.first.bells.poll(e.first.clock.now); !e.first.sched.waiting() {
			t.Fatalf("nobody wants a turn with %d of %d copies to go", before, datagrams*members)
		}
		e.first.sched.next(e.first.clock.now).turn(turnBytes)
		got := uint64(0)
		e.only().EachQP(func(q *nic.QP) { got += q.Transport().Counters().RcvdPackets })
		if copies, most := got-before, uint64(turnBytes/memberCost+members); copies > most {
			t.Fatalf("one turn made %d copies, want %d at most", copies, most)
		}
		before = got
	}
}

// TestGroupOnTwoLoops: a member of a group whose session cannot come to the first loop yet shares nothing with the members
// there. Neither receives what the other sends, and the NIC counts the lost datagrams. Both do as soon as it has moved.
func TestGroupOnTwoLoops(t *testing.T) {
	const ud, qkey = 4, 7
	group := ib.GID{10: 0xff, 11: 0xff, 12: 239, 15: 9}
	e := severalLoops(t, 2)
	first, second := newClient(t, e), newClient(t, e)
	first.moveTo(0)
	second.moveTo(1)
	other := second.newQP(rc)
	waits := func(so bool) { e.Do(func() { other.task().waits = so }) }
	waits(true) // its session cannot move
	defer waits(false)
	join := func(c *program) (q *testQP, ah uint32) {
		q = c.newQP(ud)
		q.datagrams(qkey)
		c.do(func() (err error) {
			if err = c.s.AttachMcast(q.info.Handle, group, 0); err != nil {
				return err
			}
			_, ah, err = c.s.CreateAH(q.pd, nic.AHAttr{DGID: group, IsGlobal: true, PortNum: 1})
			return err
		})
		return q, ah
	}
	a, toA := join(first)
	b, toB := join(second)
	if n, m := first.loop(), second.loop(); n != 0 || m != 1 {
		t.Fatalf("the programs are on loops %d and %d, want 0 and 1", n, m)
	}
	received := func(q *testQP) (n uint64) {
		e.Do(func() { n = q.task().q.Transport().Counters().RcvdPackets })
		return n
	}
	dropped := func() (n uint64) {
		e.Do(func() { n = e.only().Counters().Drops[nic.DropNoQP] })
		return n
	}
	const datagrams = 100
	for range datagrams {
		a.datagram(toA, ib.EveryQP, qkey, 8)
		b.datagram(toB, ib.EveryQP, qkey, 8)
	}
	for range datagrams {
		a.wait()
		b.wait()
	}
	if n, m := received(a), received(b); n != datagrams || m != datagrams {
		t.Errorf("the members received %d and %d datagrams, want the %d of their own loop", n, m, datagrams)
	}
	if n := dropped(); n != 2*datagrams {
		t.Errorf("the NIC counts %d lost datagrams, want %d", n, 2*datagrams)
	}
	across := func() (of [2]uint64) {
		e.Do(func() {
			list, _ := e.LoopStatus()
			for i, l := range list {
				of[i] = l.Across
			}
		})
		return of
	}
	if of := across(); of != [2]uint64{datagrams, datagrams} {
		t.Errorf("the loops have dropped %d datagrams, want %d each", of, datagrams)
	}
	waits(false)
	eventually(t, "the session moves", func() bool { return second.loop() == 0 })
	a.datagram(toA, ib.EveryQP, qkey, 8)
	a.wait()
	if n, m := received(a), received(b); n != datagrams+1 || m != datagrams+1 {
		t.Errorf("the members received %d and %d datagrams, want %d", n, m, datagrams+1)
	}
	if n := dropped(); n != 2*datagrams {
		t.Errorf("the NIC counts %d lost datagrams, want %d", n, 2*datagrams)
	}
}
