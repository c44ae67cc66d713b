package main

import (
	"errors"
	"net"
	"path/filepath"
	"testing"

	"vrdma.dev/vrdma/internal/platform/launch"
)

// A killed daemon accepts connections for a moment and closes them: it counts as absent, not as
// broken.
func TestProbeDying(t *testing.T) {
	p := launch.Place{Socket: filepath.Join(t.TempDir(), "s")}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: p.Socket, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	l.SetUnlinkOnClose(false)
	go func() {
		for range 3 {
			if c, err := l.Accept(); err == nil {
				c.Close()
			}
		}
		l.Close()
	}()
	if d, err := probe(t.Context(), p); !errors.Is(err, launch.ErrAbsent) {
		t.Errorf("got %+v, %v, want that there is no daemon", d, err)
	}
}
