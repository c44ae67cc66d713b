package tunnel

import (
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A tunnel that takes over is silent, while the one before goes on with the same socket. After Begin it has the peer
// use a new session.
func TestTakeover(t *testing.T) {
	a, b := realHost(t, "127.0.0.1", freePort(t, "127.0.0.1")), realHost(t, "127.0.0.2", freePort(t, "127.0.0.2"))
	introduce(t, a, b)
	old := a.tun
	inherited := func(port uint16, addr netip.Addr) (fds []int) {
		for _, fd := range old.Sockets()[addr] {
			d, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil || port != old.Port() {
				t.Fatalf("port %d: %v", port, err)
			}
			fds = append(fds, d)
		}
		return fds
	}
	next, err := Open(Options{Key: a.key, Addrs: []netip.Addr{a.addr}, Port: old.Port(), Log: chatter(a), Inherited: inherited, Silent: true})
	if err != nil {
		t.Fatal(err)
	}
	ea, eb := a.entry(false), b.entry(false)
	ea.TunnelPort, eb.TunnelPort = old.Port(), b.tun.Port()
	a.tun = next
	a.follow(ea, eb)
	a.tun = old
	for range 3 {
		a.say(b, "before")
		wantHeard(t, b.await(1), a, []string{"before"})
	}
	if c := next.Counters(); c != (Counters{}) {
		t.Errorf("a silent tunnel has counted %+v", c)
	}
	old.Close()
	a.tun = next // which the cleanup of a closes
	if err := next.Begin(); err != nil {
		t.Fatal(err)
	}
	// b drops a handshake that comes within 20 ms of the one before, and the next comes after 5 s.
	untilHeard(t, a, b, "after")
	// b may send under the session before, until it has seen the handshake.
	untilHeard(t, b, a, "back")
}

// untilHeard sends a datagram again and again, until it arrives.
func untilHeard(t *testing.T, from, to *testHost, text string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		from.say(to, text)
		if got := to.hear(); len(got) > 0 {
			wantHeard(t, got[:1], from, []string{text})
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%q never arrives; %+v", text, to.tun.Counters())
		}
	}
}
