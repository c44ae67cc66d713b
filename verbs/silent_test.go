package verbs_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/testkit/testdaemon"
	"vrdma.dev/vrdma/verbs"
)

// TestSilentBeside checks a daemon that does not answer: opening a device of another daemon does not wait, and opening this one ends
// with its context.
func TestSilentBeside(t *testing.T) {
	silent := filepath.Join(t.TempDir(), "silent")
	l, err := net.Listen("unixpacket", silent)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() {
		_, err := verbs.Options{Socket: silent}.Open(ctx)
		first <- err
	}()
	c, err := l.Accept() // the client waits for our Welcome now
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()

	openDevice(t, testdaemon.Start(t))

	short, done := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer done()
	if _, err := (verbs.Options{Socket: silent}).Open(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("opened a device of a silent daemon: %v", err)
	}
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("opened a device of a silent daemon: %v", err)
	}
}
