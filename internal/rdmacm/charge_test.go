package rdmacm

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"vrdma/internal/abi"
	"vrdma/internal/budget"
)

// TestCharges: identifiers and channels are charged to the client's user, and come back
// with the client, however it ends.
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
