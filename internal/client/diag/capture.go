package diag

import (
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/net/roce"
)

// capturePiece is how much of a capture file goes into one message.
const capturePiece = 32 << 10

// captureWriter sends the bytes of a capture file to a tool, once it has been told that
// the capture runs.
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

// serveCapture records every packet until the tool hangs up. There is one capture at
// a time: a second would slow the loop for the sake of a copy of the same file.
func (d *Desk) serveCapture(c *protocol.Conn, outer bool) {
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
	// The tool hears of it when it is true: no packet from then on is missed.
	d.cfg.Loop.Do(func() { d.cfg.Loop.SetTap(tap) })
	err = c.SendJSON(protocol.ControlReply{})
	close(w.ready)
	if err == nil {
		c.Wait() // the tool has nothing more to say: this is its end
	}
	d.cfg.Loop.Do(func() { d.cfg.Loop.SetTap(nil) })
	c.Close()
	tap.Close()
	if n := tap.LeftOut(); n > 0 {
		d.cfg.Log.Warn("packets were left out of a capture: its reader was too slow", "packets", n)
	}
}
