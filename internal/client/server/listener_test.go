package server

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/registry"
)

// twoListeners is a server with a second NIC, behind a listener of its own. Nothing drives it: it
// can be reached, but not used.
func twoListeners(t *testing.T) (s *Server, second *listener) {
	t.Helper()
	blue := &registry.NIC{Name: "blue", Network: "blue", Device: nic.New(nic.Config{Name: "rxe0", GIDs: testNIC().GIDs})}
	s = testServerWith(t, Config{Listeners: []Listener{{}, {Socket: filepath.Join(t.TempDir(), "blue.sock"), NIC: blue}}})
	return s, s.listeners.list[1]
}

// TestListenerNamesItsNIC: a client gets the NIC behind the listener that it connected to. It may name
// that one, or none.
func TestListenerNamesItsNIC(t *testing.T) {
	s, second := twoListeners(t)
	for _, c := range []struct {
		at   *listener
		name string
		ok   bool
	}{
		{s.listeners.list[0], "", true}, {s.listeners.list[0], registry.Default, true}, {s.listeners.list[0], "blue", false},
		{second, "", true}, {second, "blue", true}, {second, registry.Default, false}, {second, "b\x1b[2Jue", false},
	} {
		for _, kind := range []protocol.Kind{protocol.KindProcess, protocol.KindControl, protocol.KindNetlink} {
			conn, err := protocol.Dial(c.at.Socket, protocol.Hello{Kind: kind, VNIC: c.name})
			if err == nil {
				conn.Close()
			}
			if c.ok {
				if err != nil {
					t.Errorf("vNIC %q at the listener of %q: %v", c.name, c.at.NIC.Name, err)
				}
				continue
			}
			if !errors.Is(err, syscall.ENODEV) || !strings.Contains(err.Error(), "no vNIC") || !strings.Contains(err.Error(), c.at.NIC.Name) || strings.Contains(err.Error(), "\x1b") {
				t.Errorf("vNIC %q at the listener of %q: %v, want ENODEV and the name of the one that is there", c.name, c.at.NIC.Name, err)
			}
		}
	}
}

// TestTokenOfAnotherListener: a process of one listener is unknown at another.
func TestTokenOfAnotherListener(t *testing.T) {
	s, second := twoListeners(t)
	proc := dial(t, s, protocol.Hello{Kind: protocol.KindProcess})
	for _, kind := range []protocol.Kind{protocol.KindUverbs, protocol.KindRDMACM} {
		c, err := protocol.Dial(second.Socket, protocol.Hello{Kind: kind, Token: proc.Welcome.Token})
		if err == nil {
			c.Close()
		}
		if kind == protocol.KindUverbs && !errors.Is(err, syscall.EPERM) || err == nil {
			t.Errorf("kind %d: %v, want EPERM", kind, err)
		}
	}
}

// TestListenersSeeTheirOwn: a tool at one listener does not see the programs at another, though
// they are of its own user.
func TestListenersSeeTheirOwn(t *testing.T) {
	s, second := twoListeners(t)
	open(t, s)
	for _, c := range []struct {
		at   *listener
		want int
	}{{s.listeners.list[0], 1}, {second, 0}} {
		tool, err := protocol.Dial(c.at.Socket, protocol.Hello{Kind: protocol.KindControl})
		if err != nil {
			t.Fatal(err)
		}
		defer tool.Close()
		var st protocol.Status
		if err := errors.Join(tool.SendJSON(protocol.ControlRequest{Op: protocol.ControlStatus}), tool.ReceiveJSON(&st)); err != nil {
			t.Fatal(err)
		}
		if len(st.Sessions) != c.want || st.Socket != c.at.Socket {
			t.Errorf("at the listener of %q: %d sessions of %s, want %d", c.at.NIC.Name, len(st.Sessions), st.Socket, c.want)
		}
	}
}

// TestRecheckEndsLookers: a program that may not open the NIC any more is disconnected, and so is
// a tool that only queries it.
func TestRecheckEndsLookers(t *testing.T) {
	var shut atomic.Bool
	blue := &registry.NIC{Name: "blue", Network: "blue", Device: nic.New(nic.Config{Name: "rxe0", GIDs: testNIC().GIDs})}
	s := testServerWith(t, Config{Listeners: []Listener{{}, {
		Socket: filepath.Join(t.TempDir(), "blue.sock"), NIC: blue,
		Admit: func(*credentials.Caller, syscall.Conn) error {
			if shut.Load() {
				return errors.New("not any more")
			}
			return nil
		},
	}}})
	second := s.listeners.list[1]
	var open []*protocol.Session
	for _, kind := range []protocol.Kind{protocol.KindProcess, protocol.KindControl, protocol.KindNetlink} {
		conn, err := protocol.Dial(second.Socket, protocol.Hello{Kind: kind})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		open = append(open, conn)
	}
	second.mu.Lock()
	for _, g := range second.users {
		if g.who == nil {
			t.Error("somebody who has to be admitted is not known")
			continue
		}
		stranger := *g.who // the daemon's owner is not asked
		stranger.Owner = false
		g.who = &stranger
	}
	second.mu.Unlock()
	shut.Store(true)
	s.Recheck(blue)
	for i, conn := range open {
		conn.SetReadDeadline(time.Now().Add(time.Minute))
		var buf [64]byte
		_, _, err := conn.ReadMessage(buf[:])
		if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("conversation %d goes on: %v", i, err)
		}
	}
}
