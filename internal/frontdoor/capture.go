package frontdoor

import (
	"vrdma/internal/channel"
	"vrdma/internal/link"
)

// capturePiece is how much of a capture file goes into one message.
const capturePiece = 32 << 10

// captureWriter sends the bytes of a capture file to a tool, once it has been told that
// the capture runs.
type captureWriter struct {
	conn  *channel.Conn
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
func (s *Server) serveCapture(c *channel.Conn) {
	if !s.capturing.CompareAndSwap(false, true) {
		c.SendJSON(channel.ControlReply{Error: "another capture is running: end it first"})
		return
	}
	defer s.capturing.Store(false)
	w := captureWriter{c, make(chan struct{})}
	tap, err := link.NewTap(w)
	if err != nil {
		s.log.Error("cannot capture", "error", err)
		c.SendJSON(channel.ControlReply{Error: err.Error()})
		return
	}
	// The tool hears of it when it is true: no packet from then on is missed.
	s.cfg.Engine.Do(func() { s.cfg.Engine.SetTap(tap) })
	err = c.SendJSON(channel.ControlReply{})
	close(w.ready)
	if err == nil {
		readable(c) // the tool has nothing more to say: this is its end
	}
	s.cfg.Engine.Do(func() { s.cfg.Engine.SetTap(nil) })
	c.Close()
	tap.Close()
	if n := tap.LeftOut(); n > 0 {
		s.log.Warn("packets were left out of a capture: its reader was too slow", "packets", n)
	}
}
