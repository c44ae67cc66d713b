package server

import (
	"errors"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/testkit/locked"
)

// TestForeignMemoryWhy: a program whose memory the daemon may not access gets EPERM and keeps the memory that can be
// mapped. Log and trace give the reason.
func TestForeignMemoryWhy(t *testing.T) {
	var text locked.Buffer
	s := testServerWith(t, Config{Log: slog.New(slog.NewTextHandler(&text, nil))})
	c := &client{t: t, buf: make([]byte, protocol.MaxMessage)}
	c.proc = dial(t, s, protocol.Hello{Kind: protocol.KindProcess, Program: "prog"})
	s.clients.mu.Lock()
	for _, p := range s.clients.processes {
		p.space.SetForeign(nil)
		p.apart = errors.New("it is a test")
	}
	s.clients.mu.Unlock()
	c.dev = dial(t, s, protocol.Hello{Kind: protocol.KindUverbs, Token: c.proc.Welcome.Token, Program: "prog"})
	c.must(legacy(abi.CmdGetContext, &abi.GetContext{Response: respAddr}, nil, 8))
	sub := s.desk.Trace.Subscribe("", &credentials.Caller{UID: os.Getuid()}, true)
	defer s.desk.Trace.Unsubscribe(sub)
	reg := func(kind uint32) ([]byte, protocol.Extent) {
		const start = 0x7000_0000_0000
		return legacy(abi.CmdRegMR, &abi.RegMR{Response: respAddr, Start: start, Length: 4096, HCAVA: start, PDHandle: pd(c)}, nil, 12),
			protocol.Extent{Start: start, Length: 4096, Kind: kind, Prot: protocol.ProtRead}
	}
	command, extent := reg(protocol.ExtentForeign)
	c.fails("foreign memory", command, syscall.EPERM, extent)
	if got := text.String(); !strings.Contains(got, "it is a test") {
		t.Errorf("the log says %q", got)
	}
	for r := range sub.Records {
		if strings.HasPrefix(r.Error, "EPERM") {
			if !strings.Contains(r.Error, "it is a test") {
				t.Errorf("the trace says %q", r.Error)
			}
			break
		}
	}
	command, extent = reg(protocol.ExtentOwn)
	c.must(command, extent)
}
