package diag

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"time"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/net/roce"
)

// capturePiece is the number of bytes of a capture file in one message.
const capturePiece = 32 << 10

// captureWriter sends the bytes of a capture file to a tool, after the reply that the capture runs.
type captureWriter struct {
	conn  *protocol.Conn
	ready chan struct{}
}

// Write implements io.Writer.
func (w captureWriter) Write(b []byte) (int, error) {
	<-w.ready
	for n := 0; n < len(b); {
		piece := b[n:min(len(b), n+capturePiece)]
		if err := w.conn.WriteMessage(piece); err != nil {
			return n, err
		}
		n += len(piece)
	}
	return len(b), nil
}

// finish sends the last message: how many packets there were.
func (w captureWriter) finish(mark string, t *roce.Tap) {
	if mark == "" {
		return // an older tool
	}
	if text, err := json.Marshal(protocol.CaptureEnd{Packets: t.Recorded(), LeftOut: t.LeftOut()}); err == nil {
		w.conn.WriteMessage(append([]byte(mark), text...)) // the tool may be gone
	}
}

// captureRest is how long a tool may take to read the rest of a capture that it has ended.
const captureRest = 10 * time.Second

// selection is what a request asks for.
func (d *Service) selection(req *protocol.ControlRequest) (s roce.Selection, err error) {
	s.Snap = max(req.Snap, 0)
	for _, a := range req.Peers {
		if s.Peers == nil {
			s.Peers = make(map[netip.Addr]bool)
		}
		s.Peers[a.Unmap()] = true
	}
	if req.NIC == "" {
		return s, nil
	}
	n := d.cfg.NICs.Named(req.NIC)
	if n == nil {
		return s, fmt.Errorf("there is no NIC %s on this host: vrdma get nics lists them", req.NIC)
	}
	s.NICs = make(map[netip.Addr]bool)
	for _, g := range n.Device.Face().GIDs {
		s.NICs[g.GID.Addr()] = true
	}
	if len(s.NICs) == 0 {
		return s, fmt.Errorf("NIC %s has no address yet: no program has it open", req.NIC)
	}
	return s, nil
}

// serveCapture records packets until the tool disconnects or shuts down its side. There is only one capture at a time: a second one would slow the
// loop for the same content.
func (d *Service) serveCapture(c *protocol.Conn, req *protocol.ControlRequest) {
	only, err := d.selection(req)
	if err != nil {
		c.SendJSON(protocol.ControlReply{Error: err.Error()})
		return
	}
	if !d.capturing.CompareAndSwap(false, true) {
		c.SendJSON(protocol.ControlReply{Error: "another capture is running: end it first"})
		return
	}
	defer d.capturing.Store(false)
	w := captureWriter{c, make(chan struct{})}
	tap, err := roce.NewTap(w)
	if err != nil {
		d.cfg.Log.Error("cannot capture", "error", err)
		c.SendJSON(protocol.ControlReply{Error: err.Error()})
		return
	}
	tap.SetOuter(req.Outer)
	tap.Select(only)
	// Reply when the tap is set: no later packet is missed.
	d.cfg.Loop.Do(func() { d.cfg.Loop.SetTap(tap) })
	err = c.SendJSON(protocol.ControlReply{})
	close(w.ready)
	if err == nil {
		c.Wait() // the tool sends nothing more: this is its disconnect
	}
	d.cfg.Loop.Do(func() { d.cfg.Loop.SetTap(nil) })
	c.SetWriteDeadline(time.Now().Add(captureRest))
	if tap.Close() == nil {
		w.finish(req.End, tap)
	}
	c.Close()
	if n := tap.LeftOut(); n > 0 {
		d.cfg.Log.Warn("packets were left out of a capture: its reader was too slow", "packets", n)
	}
}
