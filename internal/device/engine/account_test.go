package engine

import (
	"testing"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/ib"
)

// A pass charges its time to the NICs that it worked for, to the nanosecond: it reads the clock at each change of NIC.
// Passes without work are charged to none.
func TestBill(t *testing.T) {
	e, _, nics := twins(t, Options{}, address(1), address(2))
	var qs [2]*testQP
	for i, n := range nics {
		gid := n.GIDs[0].GID
		q := newProgram(t, e, n, gid, i).newQP(rc)
		connect(q, newProgram(t, e, n, gid, i).newQP(rc))
		qs[i] = q
	}
	halt(e)
	clock, step := e.first.clock.now, ib.Time(1_000)
	e.first.clock.time = func() ib.Time { clock += step; return clock }
	e.first.clock.read() // a loop that stops right after a command has not charged it yet
	spent := func(i int) ib.Time { return nics[i].Counters().LoopTime }
	pass := func() (a, b, all ib.Time) {
		begin := [2]ib.Time{spent(0), spent(1)}
		e.first.clock.read()
		start := e.first.clock.now
		for _, bell := range e.first.bells.of {
			e.first.bells.activate(bell, e.first.clock.now)
		}
		e.first.step()
		e.first.clock.read()
		return spent(0) - begin[0], spent(1) - begin[1], e.first.clock.now - start
	}
	ring := func(i int) {
		q := qs[i]
		q.post(wr{op: opWrite, n: 8, remote: q.c.base, rkey: q.mr.RKey})
	}

	if a, b, _ := pass(); a != 0 || b != 0 {
		t.Errorf("a pass without work cost the NICs %v and %v", a, b)
	}
	ring(0)
	if a, b, all := pass(); a != all || b != 0 {
		t.Errorf("a pass of %v for the first NIC cost %v, and the second %v", all, a, b)
	}
	step = 100 // both have their turns in one pass
	ring(0)
	ring(1)
	if a, b, all := pass(); a == 0 || b == 0 || a+b != all {
		t.Errorf("a pass of %v for both cost %v and %v", all, a, b)
	}
	// Reading the doorbells of the second takes long. That time is not charged to the first.
	slow := true
	e.first.clock.time = func() ib.Time {
		if slow && e.first.clock.of != nil && e.first.clock.of.nic == nics[1] { // its doorbells come before its turn
			slow = false
			clock += 50_000
		}
		clock += step
		return clock
	}
	ring(0)
	ring(1)
	a, b, all := pass()
	for range 3 { // a task that has waited for long gets the next pass
		c, d, more := pass()
		a, b, all = a+c, b+d, all+more
	}
	if a == 0 || a > 10_000 || b < 50_000 || a+b > all {
		t.Errorf("a pass of %v for both, 50 us of it for doorbells of the second, cost %v and %v", all, a, b)
	}
	// A command, and the loop's unattributed work after it.
	before := spent(1)
	step = 1_000
	e.first.clock.read()
	e.Bill(nics[1])
	clock += 5_000
	e.first.clock.read()
	e.first.clock.read()
	if d := spent(1) - before; d != 6_000 {
		t.Errorf("a command of 6 µs cost %v ns", d)
	}
}

// TestDropsCounted: a packet dropped on this host is counted at its NIC, by reason.
func TestDropsCounted(t *testing.T) {
	e, w, nics := twins(t, Options{}, address(1), address(2))
	a := newProgram(t, e, nics[0], nics[0].GIDs[0].GID, 0).newQP(rc)
	b := newProgram(t, e, nics[1], nics[1].GIDs[0].GID, 0).newQP(rc)
	a.timeout = 5
	connect(a, b)
	var c nic.Counters
	read := func() { e.Do(func() { c = nics[0].Counters() }) }
	if read(); c.Connected != 1 || c.Drops != [nic.NumReasons]uint64{} {
		t.Fatalf("before: %+v", c)
	}
	e.Do(func() {
		w.cut[nics[0]] = nics[1].GIDs[0].GID
		nics[0].Reroute()
	})
	a.post(wr{op: opWrite, flags: signal, n: 8, remote: b.c.base, rkey: b.mr.RKey})
	if st := a.wait().status; st == 0 {
		t.Fatal("a write that leads nowhere succeeded")
	}
	if read(); c.Drops[nic.DropNoNIC] == 0 || c.Drops[nic.DropNoNIC] != c.SentPackets {
		t.Errorf("drops %v of %d packets that led nowhere", c.Drops, c.SentPackets)
	}
	e.Do(func() {
		if _, err := b.c.s.DestroyQP(b.info.Handle); err != nil {
			t.Error(err)
		}
		delete(w.cut, nics[0])
		nics[0].Reroute()
	})
	a2 := newProgram(t, e, nics[0], nics[0].GIDs[0].GID, 0).newQP(rc)
	a2.timeout = 5
	a2.to(b)
	a2.post(wr{op: opWrite, flags: signal, n: 8, remote: b.c.base, rkey: b.mr.RKey})
	if st := a2.wait().status; st == 0 {
		t.Fatal("a write to nobody succeeded")
	}
	if read(); c.Drops[nic.DropNoQP] == 0 {
		t.Errorf("drops %v after a write to a queue pair that is gone", c.Drops)
	}
}
