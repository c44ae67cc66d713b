package goverbs

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/harness"
)

// rstream exchanges 16 bytes both ways, then a number of transfers in one direction and as many back.
const (
	rstreamSync   = 16
	rstreamRounds = 2
	rstreamCount  = 50
	rstreamSize   = 65536
)

// rstream are its options; it checks what it receives.
func rstream(port int, more ...string) []string {
	return append([]string{
		"rstream", "-T", "v", "-p", strconv.Itoa(port),
		"-S", strconv.Itoa(rstreamSize), "-I", strconv.Itoa(rstreamRounds), "-C", strconv.Itoa(rstreamCount),
	}, more...)
}

// TestServerOfRstream: rstream sends to a Go program and checks the data that returns.
func TestServerOfRstream(t *testing.T) {
	harness.Need(t, "rstream")
	d := harness.Device(t)
	l, err := provider(t, d).Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	_, text, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	client := d.Launch(t, rstream(port, "-s", "127.0.0.1")...)
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			accepted <- c
		}
		close(accepted)
	}()
	var c net.Conn
	select {
	case c = <-accepted:
	case <-client.Done():
	case <-time.After(minute):
	}
	if c == nil {
		t.Fatalf("nobody was accepted; rstream: %s\n%s", client.Fate(), client.Output())
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(minute))
	back := make([]byte, rstreamCount*rstreamSize)
	for _, n := range []int{rstreamSync, len(back), len(back)} {
		if _, err := io.ReadFull(c, back[:n]); err != nil {
			t.Fatalf("%v\n%s", err, client.Output())
		}
		if _, err := c.Write(back[:n]); err != nil {
			t.Fatalf("%v\n%s", err, client.Output())
		}
	}
	client.OK(t, minute)
}

// TestClientOfRstream is TestServerOfRstream with the roles exchanged.
func TestClientOfRstream(t *testing.T) {
	harness.Need(t, "rstream")
	d := harness.Device(t)
	port := harness.FreePort(t)
	server := d.Launch(t, rstream(port, "-b", "127.0.0.1")...)
	d.AwaitManaged(t, server, port)
	c, err := provider(t, d).Dial(testContext(t), fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	// Both sides count the bytes that they send.
	var sent, got byte
	b := make([]byte, rstreamCount*rstreamSize)
	for _, n := range []int{rstreamSync, len(b), len(b)} {
		for i := range b[:n] {
			b[i] = sent
			sent++
		}
		if _, err := c.Write(b[:n]); err != nil {
			t.Fatalf("%v\n%s", err, server.Output())
		}
		if _, err := io.ReadFull(c, b[:n]); err != nil {
			t.Fatalf("%v\n%s", err, server.Output())
		}
		for i, v := range b[:n] {
			if v != got {
				t.Fatalf("byte %d of %d is %d, want %d", i, n, v, got)
			}
			got++
		}
	}
	if _, err := c.Read(b); !errors.Is(err, io.EOF) {
		t.Errorf("after the last byte came %v, not the end", err)
	}
	server.OK(t, minute)
}
