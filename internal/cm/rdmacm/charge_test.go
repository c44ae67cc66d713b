package rdmacm

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/budget"
)

// TestCharges checks that identifiers and channels are charged to the client's user, and refunded when the client ends in any way.
func TestCharges(t *testing.T) {
	limit := budget.Bill{budget.State: 100 << 10, budget.Files: 4}
	more := limit
	for k := range more {
		more[k] = more[k]*4 + 1
	}
	who := budget.New(budget.Limits{All: more, Others: more, User: limit}).User(1000)
	f := newFabric(t)
	c := f.cma.NewClient(1, "test")
	c.SetAccount(who)
	var ch *Channel
	for i := range 3 {
		var end *os.File
		made, err := c.NewChannel(socket(&end))
		if i < 2 {
			if err != nil {
				t.Fatal(err)
			}
			defer end.Close()
			ch = made
		} else if !errors.Is(err, syscall.EMFILE) {
			t.Errorf("a third channel of two descriptors each: %v, want EMFILE", err)
		}
	}
	var ids []*ID
	var err error
	for err == nil {
		var id *ID
		if id, err = ch.Create(1, abi.PSTCP, 0); err == nil {
			ids = append(ids, id)
		}
	}
	if !errors.Is(err, syscall.ENOMEM) || len(ids) == 0 {
		t.Errorf("%d identifiers, then %v, want ENOMEM", len(ids), err)
	}
	ids[0].Destroy()
	if _, err := ch.Create(1, abi.PSTCP, 0); err != nil {
		t.Errorf("in the place of one that is gone: %v", err)
	}
	c.Close()
	if _, err := ch.Create(1, abi.PSTCP, 0); err != syscall.EIO {
		t.Errorf("an identifier on a closed channel: %v, want EIO", err)
	}
	if used := who.Used(); used != (budget.Bill{}) {
		t.Errorf("after the end the user still has %v", used)
	}
}

// TestRequestPace checks that connection requests over the rate are refused at once, and that a refused identifier can try again.
func TestRequestPace(t *testing.T) {
	f := newFabric(t)
	pace := &budget.Pace{Tenant: "red"}
	pace.Set(2)
	p := f.program()
	p.c.SetPace(pace)
	var ids [3]*ID
	for i := range ids {
		ids[i] = p.id(uint64(i+1), abi.PSTCP)
		p.route(ids[i], "10.0.0.1:7471")
	}
	for i, id := range ids {
		err := id.Connect(param(1, ""), ECE{})
		var over *budget.Error
		switch {
		case i < 2 && err != nil:
			t.Errorf("request %d: %v", i, err)
		case i == 2 && (!errors.Is(err, syscall.EAGAIN) || !errors.As(err, &over) || over.Tenant != "red"):
			t.Errorf("request %d: %v, want EAGAIN, since tenant red asks too often", i, err)
		}
	}
	f.now += 600e6 // more than half a second
	if err := ids[2].Connect(param(1, ""), ECE{}); err != nil {
		t.Errorf("later: %v", err)
	}
}

// TestConnectionQuota checks that a connection counts from its request until its identifier is destroyed.
func TestConnectionQuota(t *testing.T) {
	all := budget.Bill{}
	for k := range all {
		all[k] = 1 << 40
	}
	ledger := budget.New(budget.Limits{All: all, Others: all, User: all})
	red := ledger.Tenant("red", budget.Bill{budget.Connections: 1})
	f := newFabric(t)
	who := red.User(1)
	p := &prog{f: f, c: f.cma.NewClient(1, "test")}
	p.c.SetAccount(who)
	p.ch, p.fd = p.channel()
	one, two := p.id(1, abi.PSTCP), p.id(2, abi.PSTCP)
	p.route(one, "10.0.0.1:7471")
	p.route(two, "10.0.0.1:7471")
	p.must(one.Connect(param(1, ""), ECE{}))
	if err := two.Connect(param(1, ""), ECE{}); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("a second connection: %v, want EAGAIN", err)
	}
	one.Destroy()
	p.must(two.Connect(param(1, ""), ECE{}))
	two.Destroy()
	if n := who.Used()[budget.Connections]; n != 0 {
		t.Errorf("%d connections are left", n)
	}
}
