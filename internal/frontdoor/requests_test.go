package frontdoor

import (
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"vrdma/internal/abi"
	"vrdma/internal/protocol"
)

// A client that sends requests and reads no answers holds up nobody, and has all of them,
// in order, when it reads at last.
func TestUnreadAnswers(t *testing.T) {
	s := testServer(t)
	rude, other := open(t, s), open(t, s)
	port := legacy(abi.CmdQueryPort, &abi.QueryPort{Response: respAddr, PortNum: 1}, nil, abi.Size[abi.QueryPortResp]())
	wrong := legacy(abi.CmdQueryPort, &abi.QueryPort{Response: respAddr, PortNum: 2}, nil, abi.Size[abi.QueryPortResp]())
	sent := 0
	for {
		req := protocol.Request{Op: protocol.OpCommand, Command: port}
		if sent%3 == 2 {
			req.Command = wrong
		}
		rude.dev.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
		if err := rude.dev.WriteMessage(req.Append(nil)); errors.Is(err, os.ErrDeadlineExceeded) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		sent++
	}
	for range 100 {
		other.must(port)
	}
	rude.dev.SetReadDeadline(time.Now().Add(time.Minute))
	for i := range sent {
		n, _, err := rude.dev.ReadMessage(rude.buf)
		if err != nil {
			t.Fatalf("answer %d of %d: %v", i, sent, err)
		}
		var r protocol.Reply
		if err := r.Parse(rude.buf[:n]); err != nil || (r.Error != 0) != (i%3 == 2) {
			t.Fatalf("answer %d: errno %d, %v", i, r.Error, err)
		}
	}
	rude.dev.SetDeadline(time.Time{})
	rude.must(port)
}

// Commands that the loop runs itself and commands that it hands over follow each other on a
// connection.
func TestHandedOver(t *testing.T) {
	s := testServer(t)
	c := open(t, s)
	p, q := pd(c), cq(c)
	for range 100 {
		made := qp(c, p, q)
		c.fails("a registration of nothing", legacy(abi.CmdRegMR, &abi.RegMR{Response: respAddr, PDHandle: p, Start: 4096, Length: 4096, AccessFlags: 1}, nil, 12), syscall.EFAULT)
		c.must(legacy(abi.CmdDestroyQP, &abi.DestroyQP{Response: respAddr, QPHandle: made}, nil, 4))
	}
}
