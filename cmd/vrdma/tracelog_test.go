package main

import (
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/client/protocol"
)

func TestTraceLog(t *testing.T) {
	start := time.Unix(1000, 0)
	at := func(us int) time.Time { return start.Add(time.Duration(us) * time.Microsecond) }
	var out strings.Builder
	log := newTraceLog(&out)
	for _, r := range []protocol.TraceRecord{
		{Time: at(0), Program: "p", Pid: 7, Session: 1, Command: protocol.TraceOpen},
		{Time: at(1500), Duration: 2 * time.Microsecond, Program: "p", Pid: 7, Session: 1, Command: "ALLOC_PD", Result: "pd 1"},
		{Time: at(2000), Program: "p", Pid: 7, Session: 1, Command: "CREATE_XSRQ", Errno: 95, Error: "EOPNOTSUPP", Refused: true},
		{Time: at(2500), Program: "p", Pid: 7, Session: 1, Command: "REG_MR", Args: "addr 0", Errno: 14, Error: "EFAULT"},
		{Time: at(3000), Program: "p", Pid: 7, Session: 1, Command: "DEALLOC_PD", Args: "pd 1", Lost: 4},
		{Time: at(3500), Program: "p", Pid: 7, Session: 1, Command: protocol.TraceClose},
	} {
		log.add(&r)
	}
	if log.open != 0 {
		t.Errorf("%d sessions open, want 0", log.open)
	}
	log.finish()
	want := `     0.000 ms p[7.1] open 
     1.500 ms p[7.1] ALLOC_PD() = pd 1  2.0 us
     2.000 ms p[7.1] CREATE_XSRQ() = EOPNOTSUPP NOT SUPPORTED  0.0 us
     2.500 ms p[7.1] REG_MR(addr 0) = EFAULT  0.0 us
... 4 commands came too fast to be shown
     3.000 ms p[7.1] DEALLOC_PD(pd 1) = ok  0.0 us
     3.500 ms p[7.1] close 
vrdma trace: 4 commands, 2 failed, 0.002 ms in the daemon
vrdma trace: 4 more came too fast to be shown
vrdma trace: refused as unsupported:
       1 x CREATE_XSRQ
`
	if got := out.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestTraceLogOfNothing(t *testing.T) {
	var out strings.Builder
	newTraceLog(&out).finish()
	if !strings.Contains(out.String(), "did not open the device") {
		t.Errorf("got %q", out.String())
	}
}
