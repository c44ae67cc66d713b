package cm_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/testkit/testdaemon"
	"vrdma.dev/vrdma/verbs/cm"
)

// expiring is a context whose deadline passes when done is closed.
type expiring struct {
	context.Context
	done chan struct{}
}

func (e expiring) Done() <-chan struct{} { return e.done }

func (e expiring) Err() error {
	select {
	case <-e.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// TestLate: the error of a connection that gets no answer has the address, the phase and what to do.
func TestLate(t *testing.T) {
	socket := testdaemon.Start(t)
	a, b := newSide(t, socket), newSide(t, socket)
	l := must[*cm.Listener](t)(b.m.Listen("127.0.0.1:0", nil))
	ctx := expiring{testContext(t), make(chan struct{})}
	waiting, cancel := context.WithCancel(testContext(t))
	defer func() {
		cancel()
		<-ctx.done
	}()
	go func() {
		defer close(ctx.done)
		if _, err := l.Accept(waiting); err != nil { // the request has arrived, and nobody answers it
			t.Error(err)
		}
	}()
	_, err := a.m.Dial(ctx, l.Addr().String(), a.config(""))
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v, want that the deadline is exceeded", err)
	}
	for _, want := range []string{l.Addr().String(), "while waiting for the peer's reply", "port 4791", "vrdma status"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error has no %q: %v", want, err)
		}
	}
}
