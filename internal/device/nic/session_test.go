package nic

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/ib"
)

// TestTableFull: a limit above the number of handles ends at the handles. It used to
// search for a free one for ever.
func TestTableFull(t *testing.T) {
	tab := newTable[int](100, 8, syscall.EINVAL, nil, budget.Bill{})
	for i := range 8 {
		if _, err := tab.add(i); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tab.add(8); err != syscall.EINVAL {
		t.Errorf("a ninth object for eight handles: %v, want EINVAL", err)
	}
	tab.remove(3)
	if h, err := tab.add(9); h != 3 || err != nil {
		t.Errorf("the free handle: got %d, %v, want 3", h, err)
	}
}

func TestLimitsCheck(t *testing.T) {
	l := DefaultLimits
	if err := l.Check(); err != nil {
		t.Error(err)
	}
	l.QPs = doorbells + 1
	if l.Check() == nil {
		t.Error("more queue pairs than doorbell bits")
	}
}

// account is one whose user may have limit.
func account(limit budget.Bill) *budget.Account {
	more := limit
	for k := range more {
		more[k] = more[k]*4 + 1<<40
	}
	return budget.New(budget.Limits{All: more, Others: more, User: limit}).User(1000)
}

// TestCharges makes one of everything, meets each limit, and looks that the end of the
// session gives everything back.
func TestCharges(t *testing.T) {
	room := budget.Bill{budget.State: 1 << 20, budget.Rings: 1 << 20, budget.Files: 6}
	for _, test := range []struct {
		name string
		kind budget.Kind
		want syscall.Errno
		make func(s *Session, pd, cq uint32) error
	}{
		{"queue pairs", budget.State, syscall.ENOMEM, func(s *Session, pd, cq uint32) error {
			_, err := s.CreateQP(QPParams{PD: pd, SendCQ: cq, RecvCQ: cq, Type: abi.QPTypeRC})
			return err
		}},
		{"rings", budget.Rings, syscall.ENOMEM, func(s *Session, _, _ uint32) error {
			_, err := s.CreateCQ(CQParams{CQE: 4095, Channel: -1})
			return err
		}},
		{"domains", budget.State, syscall.ENOMEM, func(s *Session, _, _ uint32) error {
			_, err := s.AllocPD()
			return err
		}},
		{"groups", budget.Files, syscall.EMFILE, func(s *Session, pd, cq uint32) error {
			if s.qps.len() == 0 {
				if _, err := s.CreateQP(QPParams{PD: pd, SendCQ: cq, RecvCQ: cq, Type: abi.QPTypeUD}); err != nil {
					return err
				}
			}
			n := uint32(len(s.nic.mcast))
			return s.AttachMcast(0, ib.GID{0: 0xff, 12: byte(n >> 24), 13: byte(n >> 16), 14: byte(n >> 8), 15: byte(n)}, 0)
		}},
		{"channels", budget.Files, syscall.EMFILE, func(s *Session, _, _ uint32) error {
			_, _, err := openChannel(t, s)
			return err
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			who := account(room)
			arena, err := NewArena()
			if err != nil {
				t.Fatal(err)
			}
			arena.SetAccount(who)
			n := New(Config{})
			n.Limits.McastGroups, n.Limits.McastAttach = 1<<20, 1
			s, err := n.Open(SessionOptions{Arena: arena, Account: who})
			s.SetOwner(newFakeLoop())
			if err != nil {
				t.Fatal(err)
			}
			pd, err := s.AllocPD()
			if err != nil {
				t.Fatal(err)
			}
			cq, err := s.CreateCQ(CQParams{CQE: 1, Channel: -1})
			if err != nil {
				t.Fatal(err)
			}
			for err == nil {
				err = test.make(s, pd, cq.Handle)
			}
			var e *budget.Error
			if !errors.As(err, &e) || e.Kind != test.kind || !errors.Is(err, test.want) {
				t.Errorf("ended with %v, want the limit of %v, %v", err, test.kind, test.want)
			}
			s.Close()
			arena.Close()
			if used := who.Used(); used != (budget.Bill{}) {
				t.Errorf("after the end the user still has %v", used)
			}
		})
	}
}

// TestChargedEvents: events that nobody reads are charged, and are lost at the limit.
func TestChargedEvents(t *testing.T) {
	who := account(budget.Bill{budget.State: 100 * eventBill[budget.State]})
	s := &Session{SessionOptions: SessionOptions{Account: who}, nic: New(Config{})}
	var end *os.File
	sink, err := socket(&end)()
	if err != nil {
		t.Fatal(err)
	}
	defer end.Close()
	q := newEventQueue(s, sink)
	for range 10000 {
		q.post(compEvent(1))
	}
	if len(q.waiting) != 100 || who.Used() != (budget.Bill{budget.State: 100 * eventBill[budget.State]}) {
		t.Errorf("%d events wait, charged %v, want the 100 that may", len(q.waiting), who.Used())
	}
	if taken := q.withdraw(10000, func(e *event) bool { return true }); taken < 100 {
		t.Errorf("%d events withdrawn", taken)
	}
	if who.Used() != (budget.Bill{}) {
		t.Errorf("nothing waits, and the user still has %v", who.Used())
	}
	for range 10000 {
		q.post(compEvent(1))
	}
	q.close()
	if who.Used() != (budget.Bill{}) {
		t.Errorf("after the end the user still has %v", who.Used())
	}
}

// TestCloseSome: a session goes in pieces, whatever its objects are.
func TestCloseSome(t *testing.T) {
	const objects = 100
	r := newRig(t, DefaultLimits)
	for name, make := range map[string]func(s *Session) error{
		"domains": func(s *Session) error { _, err := s.AllocPD(); return err },
		"completion queues": func(s *Session) error {
			_, err := s.CreateCQ(CQParams{CQE: 1, Channel: -1})
			return err
		},
		"channels": func(s *Session) error {
			_, _, err := openChannel(t, s)
			return err
		},
	} {
		arena, err := NewArena()
		if err != nil {
			t.Fatal(err)
		}
		defer arena.Close()
		s, err := r.nic.Open(SessionOptions{Arena: arena})
		if err != nil {
			t.Fatal(err)
		}
		s.SetOwner(r.loop)
		for range objects {
			if err := make(s); err != nil {
				t.Fatal(err)
			}
		}
		calls := 1
		for s.CloseSome(10) {
			calls++
		}
		if calls < objects/10 || !s.closed {
			t.Errorf("%s: closed in %d calls, want a call for each 10 of %d", name, calls, objects)
		}
	}
}

// TestChargedGroups: every member of a group is charged, and one of them for the group: whoever
// made it, and when they leave another one, whose user may have room or not.
func TestChargedGroups(t *testing.T) {
	r := newRig(t, DefaultLimits)
	group := ib.GID{0: 0xff, 15: 9}
	room := budget.Bill{budget.State: 1 << 20, budget.Rings: 1 << 20, budget.Files: 1}
	poor := room
	poor[budget.Files] = 0
	type member struct {
		s    *Session
		who  *budget.Account
		base budget.Bill
		qp   uint32
	}
	var all [3]member
	for i, limit := range []budget.Bill{room, poor, room} {
		m := &all[i]
		m.who = account(limit)
		arena, err := NewArena()
		if err != nil {
			t.Fatal(err)
		}
		defer arena.Close()
		m.s = must(r.nic.Open(SessionOptions{Arena: arena, Account: m.who}))(t)
		defer m.s.Close()
		m.s.SetOwner(r.loop)
		pd, cq := must(m.s.AllocPD())(t), must(m.s.CreateCQ(CQParams{CQE: 1, Channel: -1}))(t).Handle
		m.qp = must(m.s.CreateQP(QPParams{PD: pd, SendCQ: cq, RecvCQ: cq, Type: abi.QPTypeUD}))(t).Handle
		m.base = m.who.Used()
	}
	attach := func(i int, want syscall.Errno) {
		t.Helper()
		wants(t, "attach", all[i].s.AttachMcast(all[i].qp, group, 0), want)
	}
	detach := func(i int) {
		t.Helper()
		wants(t, "detach", all[i].s.DetachMcast(all[i].qp, group, 0), 0)
	}
	// has checks for how many memberships and groups each is charged.
	has := func(when string, want ...[2]uint64) {
		t.Helper()
		for i, w := range want {
			bill := all[i].base
			for k := range bill {
				bill[k] += w[0]*memberBill[k] + w[1]*groupBill[k]
			}
			if got := all[i].who.Used(); got != bill {
				t.Errorf("%s: user %d is charged %v, want %v", when, i, got, bill)
			}
		}
	}
	attach(1, syscall.EMFILE)
	has("who cannot pay for a group", [2]uint64{}, [2]uint64{}, [2]uint64{})
	attach(0, 0)
	attach(1, 0)
	has("two members", [2]uint64{1, 1}, [2]uint64{1, 0}, [2]uint64{})
	detach(0)
	has("the other one cannot pay", [2]uint64{0, 1}, [2]uint64{1, 0}, [2]uint64{})
	detach(1)
	has("nobody is left", [2]uint64{}, [2]uint64{}, [2]uint64{})
	attach(0, 0)
	attach(2, 0)
	detach(0)
	has("the other one can pay", [2]uint64{}, [2]uint64{}, [2]uint64{1, 1})
	detach(2)
	has("the end", [2]uint64{}, [2]uint64{}, [2]uint64{})
	if n := len(r.nic.groupAccounts); n != 0 {
		t.Errorf("%d groups are still paid for", n)
	}
}
