package diag

import (
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

// serveCapture records every packet until the tool disconnects. There is only one capture at a time: a second one would slow the
// loop for the same content.
func (d *Service) serveCapture(c *protocol.Conn, outer bool) {
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
	tap.SetOuter(outer)
	// Reply when the tap is set: no later packet is missed.
	d.cfg.Loop.Do(func() { d.cfg.Loop.SetTap(tap) })
	err = c.SendJSON(protocol.ControlReply{})
	close(w.ready)
	if err == nil {
		c.Wait() // the tool sends nothing more: this is its disconnect
	}
	d.cfg.Loop.Do(func() { d.cfg.Loop.SetTap(nil) })
	c.Close()
	tap.Close()
	if n := tap.LeftOut(); n > 0 {
		d.cfg.Log.Warn("packets were left out of a capture: its reader was too slow", "packets", n)
	}
}
