package store

import (
	"bufio"
	"io"
	"net"
)

func (s *Server) acceptTCP(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return // closed
		}
		s.wg.Go(func() { s.serveTCP(c) })
	}
}

// serveTCP answers one client over TCP until it disconnects.
func (s *Server) serveTCP(c net.Conn) {
	defer c.Close()
	gone := make(chan struct{})
	defer close(gone)
	s.wg.Go(func() {
		select {
		case <-gone:
		case <-s.ctx.Done():
			c.Close() // ends the read below
		}
	})
	r := bufio.NewReader(c)
	room := make([]byte, s.maxMessage())
	for {
		request, err := readMessage(r, room)
		if err != nil {
			return
		}
		if _, err := c.Write(room[:s.answer(request, room)]); err != nil {
			return
		}
	}
}

// readMessage reads one message into room.
func readMessage(r io.Reader, room []byte) ([]byte, error) {
	if _, err := io.ReadFull(r, room[:headSize]); err != nil {
		return nil, err
	}
	length := message(room).length()
	if length > len(room)-headSize {
		return nil, ErrTooLong // the rest of the stream cannot be parsed
	}
	_, err := io.ReadFull(r, room[headSize:headSize+length])
	return room[:headSize+length], err
}
