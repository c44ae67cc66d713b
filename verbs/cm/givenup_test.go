package cm_test

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/testkit/testdaemon"
	"vrdma.dev/vrdma/verbs/cm"
)

// await waits until so returns true.
func await(t testing.TB, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}

// TestGivenUp checks a peer that abandons a connection before this side has answered, for instance after waiting too long. rdma_cm
// returns EINVAL then, and the program gets the reason.
func TestGivenUp(t *testing.T) {
	socket := testdaemon.Start(t)
	a, b := newSide(t, socket), newSide(t, socket)
	l := must[*cm.Listener](t)(b.m.Listen("127.0.0.1:0", nil))
	defer l.Close()

	t.Run("accept", func(t *testing.T) {
		ctx, cancel := context.WithCancel(testContext(t))
		defer cancel()
		dialed := make(chan error, 1)
		go func() {
			_, err := a.m.Dial(ctx, l.Addr().String(), a.config(""))
			dialed <- err
		}()
		r := must[*cm.Request](t)(l.Accept(testContext(t)))
		cancel()
		if err := <-dialed; !errors.Is(err, context.Canceled) {
			t.Fatalf("dialed: %v", err)
		}
		await(t, "a request that its peer has given up", r.Stale)
		if _, err := r.Accept(testContext(t), b.config("")); !errors.Is(err, syscall.ECONNABORTED) {
			t.Errorf("accepted: %v, want ECONNABORTED", err)
		}
	})
	t.Run("dial", func(t *testing.T) {
		ctx, cancel := context.WithCancel(testContext(t))
		defer cancel()
		accepted := make(chan error, 1)
		go func() {
			r, err := l.Accept(ctx)
			if err == nil {
				_, err = r.Accept(ctx, b.config(""))
			}
			accepted <- err
		}()
		h := must[*cm.Half](t)(a.m.DialHalf(testContext(t), l.Addr().String(), a.config("")))
		cancel()
		if err := <-accepted; !errors.Is(err, context.Canceled) {
			t.Fatalf("accepted: %v", err)
		}
		await(t, "word that the peer has gone", h.Told)
		err := h.Confirm()
		if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EINVAL) {
			t.Errorf("connected: %v, want ECONNRESET or ECONNREFUSED", err)
		}
	})
}
