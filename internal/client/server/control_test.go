package server

import (
	"context"
	"encoding/binary"
	"strings"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/client/protocol"
)

func TestStatus(t *testing.T) {
	s := testServer(t)
	c := open(t, s)
	p, q := pd(c), cq(c)
	qp(c, p, q)
	c.fails("XRC", legacy(abi.CmdOpenXRCD, &abi.DeallocPD{}, nil, 0), syscall.EOPNOTSUPP)
	st, err := protocol.QueryStatus(s.listeners.list[0].Socket)
	if err != nil {
		t.Fatal(err)
	}
	if st.Version != "test" || st.Device.Name != "rxe0" || len(st.Device.GIDs) != 2 || st.Device.GIDs[0].GID != "192.0.2.1" {
		t.Errorf("status %+v", st)
	}
	if len(st.Sessions) != 1 {
		t.Fatalf("%d sessions, want 1", len(st.Sessions))
	}
	ses := st.Sessions[0]
	if ses.Program != "prog" || ses.Objects.PDs != 1 || ses.Objects.CQs != 1 || len(ses.QPs) != 1 || ses.Commands != 5 {
		t.Errorf("session %+v", ses)
	}
	if g := ses.QPs[0]; g.Type != "RC" || g.State != "RESET" {
		t.Errorf("queue pair %+v", g)
	}
	if st.Refused["OPEN_XRCD"] != 1 {
		t.Errorf("refused: %v, want OPEN_XRCD once", st.Refused)
	}
	if _, ok := st.Counters["sent_pkts"]; !ok {
		t.Errorf("counters: %v", st.Counters)
	}
}

func TestTrace(t *testing.T) {
	s := testServer(t)
	tr, err := protocol.Trace(s.listeners.list[0].Socket, "mine")
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	mine, other := newClient(t, s, "mine"), newClient(t, s, "")
	for _, c := range []*client{other, mine} {
		_, fds := c.send(legacy(abi.CmdGetContext, &abi.GetContext{Response: respAddr}, nil, 8))
		protocol.CloseFDs(fds)
	}
	p, q := pd(mine), cq(mine)
	qph := qp(mine, p, q)
	mine.must(legacy(abi.CmdModifyQP, &abi.ModifyQP{
		QPHandle: qph, AttrMask: abi.QPMaskState | abi.QPMaskPKeyIndex | abi.QPMaskPort | abi.QPMaskAccessFlags,
		QPState: abi.QPStateInit, PortNum: 1, QPAccessFlags: abi.AccessRemoteWrite,
	}, nil, 0))
	mine.fails("flow", abi.Encode(nil, &abi.CmdHeader{Command: abi.ExCmdCreateFlow | abi.FlagExtended, InWords: 2}), syscall.EOPNOTSUPP)
	mine.fails("port", legacy(abi.CmdQueryPort, &abi.QueryPort{Response: respAddr, PortNum: 7}, nil, 40), syscall.EINVAL)
	mine.proc.Close()

	want := []struct {
		command, args, result, err string
		refused                    bool
	}{
		{command: protocol.TraceOpen},
		{command: "GET_CONTEXT", result: "num_comp_vectors=1"},
		{command: "ALLOC_PD", result: "pd_handle="},
		{command: "CREATE_CQ", args: "cqe=10 comp_vector=0 comp_channel=-1", result: "cqe="},
		{command: "CREATE_QP", args: "qp_type=RC", result: "qpn=0x"},
		{command: "MODIFY_QP", args: "attr_mask=STATE|ACCESS_FLAGS|PKEY_INDEX|PORT qp_access_flags=REMOTE_WRITE pkey_index=0 qp_state=INIT port_num=1"},
		{command: "EX_CREATE_FLOW", err: "EOPNOTSUPP", refused: true},
		{command: "QUERY_PORT", args: "port_num=7", err: "EINVAL"},
		{command: protocol.TraceClose},
	}
	for _, w := range want {
		r, err := tr.Next()
		if err != nil {
			t.Fatal(err)
		}
		if r.Command != w.command || !strings.Contains(r.Args, w.args) || !strings.Contains(r.Result, w.result) ||
			r.Error != w.err || r.Refused != w.refused || r.Program != "prog" || r.Label != "mine" {
			t.Errorf("record %+v\n want %+v", r, w)
		}
	}
}

// TestTraceArming: a traced program arms its completion queues by command, whether it connected
// before the tool or after it. It stops doing so when the tool has disconnected.
func TestTraceArming(t *testing.T) {
	s := testServer(t)
	told := func(c *client) bool {
		t.Helper()
		var b [4]byte
		if _, err := c.dev.Files[0].ReadAt(b[:], protocol.ArmByCommand); err != nil {
			t.Fatal(err)
		}
		return binary.NativeEndian.Uint32(b[:]) != 0
	}
	before, other := newClient(t, s, "mine"), newClient(t, s, "")
	if told(before) || told(other) {
		t.Fatal("nobody listens, and a program has to arm by command")
	}
	tr, err := protocol.Trace(s.listeners.list[0].Socket, "mine")
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	after := newClient(t, s, "mine")
	if !told(before) || !told(after) || told(other) {
		t.Errorf("armed by command: before %v, after %v, another %v; want the two that are traced",
			told(before), told(after), told(other))
	}
	tr.Close()
	for end := time.Now().Add(time.Minute); told(before) || told(after); {
		if time.Now().After(end) {
			t.Fatal("the tool is gone, and its programs still arm by command")
		}
		time.Sleep(time.Millisecond)
	}
}

func TestStop(t *testing.T) {
	stopped := make(chan struct{})
	s := testServerStop(t, func() { close(stopped) })
	for range 2 {
		if err := protocol.StopDaemon(s.listeners.list[0].Socket); err != nil {
			t.Fatal(err)
		}
	}
	<-stopped
}

// TestControlUnknown keeps the conversation after a request that we do not know.
func TestControlUnknown(t *testing.T) {
	s := testServer(t)
	c := dial(t, s, protocol.Hello{Kind: protocol.KindControl})
	for range 2 {
		if err := c.SendJSON(protocol.ControlRequest{Op: "dance"}); err != nil {
			t.Fatal(err)
		}
		var r protocol.ControlReply
		if err := c.ReceiveJSON(&r); err != nil || !strings.Contains(r.Error, "dance") {
			t.Errorf("%+v, %v; want an error that names the request", r, err)
		}
	}
}

// TestCloseEnds shows that Close ends what tools and programs hold open.
func TestCloseEnds(t *testing.T) {
	s := testServer(t)
	tr, err := protocol.Trace(s.listeners.list[0].Socket, "")
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	open(t, s)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		t.Error(err)
	}
	if s.Sessions() != 0 {
		t.Errorf("%d conversations after Close", s.Sessions())
	}
}
