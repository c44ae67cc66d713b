package server

import (
	"encoding/binary"
	"os"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/client/netlink"
	"vrdma.dev/vrdma/internal/client/protocol"
)

// nl sends a request of RDMA_NL_NLDEV with an attribute DEV_INDEX and returns the
// messages that answer it.
func nl(t *testing.T, c *protocol.Session, command uint16, flags uint16) (out [][]byte) {
	t.Helper()
	le := binary.NativeEndian
	b := le.AppendUint32(nil, 24)
	b = le.AppendUint16(b, 5<<10+command)
	b = le.AppendUint16(b, 1|4|flags)
	b = le.AppendUint64(b, 7)
	b = le.AppendUint32(le.AppendUint16(le.AppendUint16(b, 8), 1), 0)
	if err := c.WriteMessage(b); err != nil {
		t.Fatal(err)
	}
	for {
		buf := make([]byte, protocol.MaxMessage)
		c.SetReadDeadline(time.Now().Add(time.Minute))
		n, _, err := c.ReadMessage(buf)
		if err != nil {
			t.Fatal(err)
		}
		if kind := le.Uint16(buf[4:]); kind == 2 || kind == 3 { // the end, or an error
			if errno := -int32(le.Uint32(buf[16:])); errno != 0 {
				t.Fatalf("command %d: errno %d", command, errno)
			}
			return out
		}
		out = append(out, buf[:n])
	}
}

const (
	nlGet, nlResQP = 1, 10
	nlDump         = 0x300
)

// A program's netlink socket needs no other connection and keeps no resources.
func TestNetlink(t *testing.T) {
	s := testServer(t)
	c := dial(t, s, protocol.Hello{Kind: protocol.KindNetlink, Program: "rdma"})
	if got := nl(t, c, nlGet, nlDump); len(got) != 1 || !strings.Contains(string(got[0]), "rxe0\x00") {
		t.Fatalf("devices: %q", got)
	}
	if got := nl(t, c, nlResQP, nlDump); len(got) != 0 {
		t.Errorf("queue pairs of nobody: %q", got)
	}
	prog := open(t, s)
	qp(prog, pd(prog), cq(prog))
	if got := nl(t, c, nlResQP, nlDump); len(got) != 1 {
		t.Errorf("queue pairs: %q, want one message", got)
	}
	if n := s.Sessions(); n != 2 {
		t.Errorf("%d conversations hold the daemon open, want those of the program alone", n)
	}
	// Nonsense is ignored.
	if err := c.WriteMessage([]byte{1, 2, 3}); err != nil {
		t.Fatal(err)
	}
	if got := nl(t, c, nlGet, nlDump); len(got) != 1 {
		t.Errorf("devices: %q", got)
	}
}

// The answers of netlink equal the objects of each kind.
func TestLooker(t *testing.T) {
	s := testServer(t)
	prog := open(t, s)
	p, q := pd(prog), cq(prog)
	for range 3 {
		qp(prog, p, q)
	}
	s.clients.mu.Lock()
	me := s.clients.processes[prog.proc.Welcome.Token].Caller
	s.clients.mu.Unlock()
	l := s.desk.Looker(&me, s.listeners.list[0].NIC)
	want := netlink.Counts{}
	want[netlink.PD], want[netlink.CQ], want[netlink.QP], want[netlink.Ctx] = 1, 1, 3, 1
	if got := l.Counts(); got != want {
		t.Errorf("counts %v, want %v", got, want)
	}
	// A process with the same user ID in another user namespace is another user, even if ps shows it.
	stranger := me
	stranger.Home.User = "user:[1]"
	if got := s.desk.Looker(&stranger, s.listeners.list[0].NIC).Counts(); got != (netlink.Counts{}) {
		t.Errorf("somebody of another user namespace sees %v", got)
	}
	list := func(k netlink.Kind) (out []netlink.Resource) {
		l.Resources(k, func(r []netlink.Resource) bool { out = append(out, r...); return true })
		return out
	}
	domain := list(netlink.PD)[0]
	if domain.Users != 3 || domain.Pid != uint32(os.Getpid()) {
		t.Errorf("%+v", domain)
	}
	if c := list(netlink.CQ)[0]; c.Users != 6 || c.Context != list(netlink.Ctx)[0].ID || c.ID == domain.ID {
		t.Errorf("%+v", c)
	}
	for _, r := range list(netlink.QP) {
		if r.PD != domain.ID || r.Type != abi.QPTypeRC || r.State != abi.QPStateReset || r.Port != 0 || !r.Connected {
			t.Errorf("%+v", r)
		}
	}
	me.UID++
	l = s.desk.Looker(&me, s.listeners.list[0].NIC)
	if got := l.Counts(); got != (netlink.Counts{}) {
		t.Errorf("another user sees %v", got)
	}
}
