package goverbs

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"

	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/verbs"
	"vrdma.dev/vrdma/verbs/cm"
)

// crowd is the number of connections of one pair at a time.
func crowd() int { return harness.Pick(1000, 10000) }

// dialers is the number of connections that are made at the same time.
const dialers = 16

// descriptors returns the number of a process's descriptors.
func descriptors(t testing.TB, pid int) int {
	t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// fewDescriptors checks that the connections have no descriptors of their own, here and in the daemon.
func fewDescriptors(t testing.TB, d *harness.Daemon, f func()) {
	t.Helper()
	const few = 64
	here, there := descriptors(t, os.Getpid()), descriptors(t, d.PID())
	f()
	if now := descriptors(t, os.Getpid()); now > here+few {
		t.Errorf("the program has %d descriptors, %d before", now, here)
	}
	if now := descriptors(t, d.PID()); now > there+few {
		t.Errorf("the daemon has %d descriptors, %d before", now, there)
	}
}

// inParallel calls f n times, dialers calls at a time, and stops at the first error.
func inParallel(t testing.TB, n int, f func(i int) error) {
	t.Helper()
	if err := parallel(n, f); err != nil {
		t.Fatal(err)
	}
}

func parallel(n int, f func(i int) error) error {
	var wg sync.WaitGroup
	errs := make(chan error, dialers)
	for k := range dialers {
		wg.Go(func() {
			for i := k; i < n; i += dialers {
				if err := f(i); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}

// TestManyConnections makes many connections between two Go programs. Each carries a message.
func TestManyConnections(t *testing.T) {
	d := harness.Device(t)
	a, b := newProgram(t, d.Socket), newProgram(t, d.Socket)
	n := crowd()
	for _, p := range []*program{a, b} {
		if err := p.cq.Resize(4 * n); err != nil {
			t.Fatal(err)
		}
	}
	config := func(p *program, prepare func(*verbs.QP) error) cm.Config {
		return cm.Config{PD: p.pd, Prepare: prepare, QP: verbs.QPConfig{SendCQ: p.cq, MaxSend: 2, MaxRecv: 2, MaxInline: 8}}
	}
	l, err := b.m.Listen("127.0.0.1:0", &cm.ListenConfig{Backlog: 1024})
	if err != nil {
		t.Fatal(err)
	}
	ctx := longContext(t)
	conns := make([]*cm.Conn, 2*n)
	fewDescriptors(t, d, func() {
		accepted := make(chan error, 1)
		go func() {
			accepted <- parallel(n, func(i int) error {
				r, err := l.Accept(ctx)
				if err == nil {
					conns[n+i], err = r.Accept(ctx, config(b, b.expect))
				}
				return err
			})
		}()
		inParallel(t, n, func(i int) (err error) {
			conns[i], err = a.m.Dial(ctx, l.Addr().String(), config(a, nil))
			return err
		})
		if err := <-accepted; err != nil {
			t.Fatal(err)
		}
	})
	if got := d.Established(t); got != 2*n {
		t.Errorf("%d ends are connected, want %d", got, 2*n)
	}
	for _, c := range conns[:n] {
		if err := c.QP().PostSend(&verbs.SendWR{Op: verbs.Send, Data: []byte("hello")}); err != nil {
			t.Fatal(err)
		}
	}
	wc := make([]verbs.WC, 64)
	for got := 0; got < n; {
		k, err := b.cq.Next(ctx, wc)
		if err != nil {
			t.Fatal(err)
		}
		for i := range k {
			if err := wc[i].Err(); err != nil {
				t.Fatal(err)
			}
		}
		got += k
	}
	inParallel(t, 2*n, func(i int) error { return conns[i].Close() })
}

// TestManyStreams opens many idle stream connections; afterwards each carries a message.
func TestManyStreams(t *testing.T) {
	d := harness.Device(t)
	a, b := provider(t, d), provider(t, d)
	n := crowd()
	l, err := b.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx := longContext(t)
	out, in := make([]net.Conn, n), make([]net.Conn, n)
	fewDescriptors(t, d, func() {
		accepted := make(chan error, 1)
		go func() {
			accepted <- parallel(n, func(i int) (err error) { in[i], err = l.Accept(); return err })
		}()
		inParallel(t, n, func(i int) (err error) {
			if out[i], err = a.Dial(ctx, l.Addr().String()); err != nil {
				maps, _ := os.ReadFile("/proc/self/maps")
				return fmt.Errorf("connection %d, with %d mappings: %w", i, bytes.Count(maps, []byte("\n")), err)
			}
			return nil
		})
		if err := <-accepted; err != nil {
			t.Fatal(err)
		}
	})
	inParallel(t, n, func(i int) error { _, err := fmt.Fprint(out[i], "hello"); return err })
	inParallel(t, n, func(i int) error {
		b := make([]byte, 5)
		if _, err := io.ReadFull(in[i], b); err != nil || string(b) != "hello" {
			return fmt.Errorf("read %q: %w", b, err)
		}
		return nil
	})
	inParallel(t, n, func(i int) error { return out[i].Close() })
	inParallel(t, n, func(i int) error { return in[i].Close() })
}
