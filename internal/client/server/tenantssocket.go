package server

import (
	"path/filepath"
	"sync"
	"time"

	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/diag"
	"vrdma.dev/vrdma/internal/client/protocol"
)

// The tenants' socket serves requests about declared objects from administrators of tenants: they cannot reach the
// control socket. Every user of the machine can connect, so it exists only while a tenant has administrators. Each
// connection is charged to its user before its first message, and gets only the answers that package control allows
// that user.

type tenantsSocket struct {
	srv    *Server
	mu     sync.Mutex     // guards the fields below; before Server.mu
	socket *controlSocket // nil: there is none
	closed bool
}

// AdmitTenants opens the tenants' socket, or closes it. Open connections stay. It may be called again.
func (s *Server) AdmitTenants(admit bool) error { return s.tenants.admit(admit) }

func (t *tenantsSocket) admit(admit bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.admitLocked(admit)
}

// admitLocked is admit with mu held.
func (t *tenantsSocket) admitLocked(admit bool) error {
	if t.closed || admit == (t.socket != nil) {
		return nil
	}
	s := t.srv
	if !admit {
		t.socket.close(s.admission.uid)
		t.socket = nil
		return nil
	}
	program, err := filepath.EvalSymlinks(s.listeners.first().Socket)
	if err != nil {
		return err
	}
	socket, err := s.listenFirst(program, protocol.TenantPlaces(program, s.admission.uid), 0o755, 0o666)
	if err != nil {
		return err
	}
	t.socket = socket
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		for {
			err := s.acceptor.accept(socket.listener, tenantsEndpoint{controlEndpoint{s}})
			if err == nil {
				return
			}
			s.log.Warn("trouble at the tenants' socket", "error", err)
			time.Sleep(patience)
		}
	}()
	return nil
}

// close closes the socket for good.
func (t *tenantsSocket) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.admitLocked(false)
	t.closed = true
}

// tenantsEndpoint is the tenants' socket. Connections are charged as at the control socket.
type tenantsEndpoint struct{ controlEndpoint }

// converse serves one tool.
func (e tenantsEndpoint) converse(c *protocol.Conn, who credentials.Caller) error {
	s := e.srv
	first, who, err := s.greetTool(c, who, "tenants'")
	if err != nil {
		return err
	}
	if err := s.admission.resident(&who); err != nil {
		return err
	}
	return s.tools.serve(c, diag.View{Who: &who, Conn: c, Tenants: true, Resident: true, Socket: first.Socket})
}
