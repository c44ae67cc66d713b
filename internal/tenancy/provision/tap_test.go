package provision

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"
)

// A container waits a while for a NIC that another host releases, but not for a store that hangs.
func TestSoon(t *testing.T) {
	busy := errors.New("it is on host b")
	tries := 0
	if err := soon(func() error {
		if tries++; tries < 3 {
			return busy
		}
		return nil
	}, time.Minute, time.Minute); err != nil || tries != 3 {
		t.Errorf("%d tries: %v", tries, err)
	}
	if err := soon(func() error { return busy }, 0, time.Minute); !errors.Is(err, busy) {
		t.Errorf("it stays there: %v", err)
	}
	var calls atomic.Int32
	hangs := make(chan struct{})
	defer close(hangs)
	if err := soon(func() error { calls.Add(1); <-hangs; return nil }, time.Minute, time.Millisecond); err == nil || calls.Load() > 1 {
		t.Errorf("it hangs: %v", err)
	}
}
