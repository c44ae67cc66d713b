package server

import (
	"path/filepath"
	"sync"
	"time"

	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/diag"
	"vrdma.dev/vrdma/internal/client/protocol"
)

// The tenants' socket: a tenant's administrators, who cannot reach the control socket, ask here
// about declared objects. Everybody on the machine can connect, so it is there only while
// somebody has use for it; each connection is charged to its user before it has said a word, as
// at a door, and nothing else is answered than what package control lets that user see.

type tenantsSocket struct {
	mu     sync.Mutex
	socket *controlSocket // nil: there is none
	closed bool
}

// AdmitTenants opens the tenants' socket, or closes it. Conversations go on. It may be called
// again.
func (s *Server) AdmitTenants(admit bool) error {
	s.tenants.mu.Lock()
	defer s.tenants.mu.Unlock()
	return s.admitTenants(admit)
}

// admitTenants does. tenants.mu is held.
func (s *Server) admitTenants(admit bool) error {
	t := &s.tenants
	if t.closed || admit == (t.socket != nil) {
		return nil
	}
	if !admit {
		t.socket.close(s.uid)
		t.socket = nil
		return nil
	}
	s.mu.Lock()
	program, err := filepath.EvalSymlinks(s.listeners[0].Socket)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	socket, err := listenFirst(program, protocol.TenantPlaces(program, s.uid), s.uid, 0o755, 0o666)
	if err != nil {
		return err
	}
	t.socket = socket
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		for {
			err := s.accept(socket.listener, tenantsEndpoint{controlEndpoint{s}})
			if err == nil {
				return
			}
			s.log.Warn("trouble at the tenants' socket", "error", err)
			time.Sleep(patience)
		}
	}()
	return nil
}

// closeTenants closes it for good.
func (s *Server) closeTenants() {
	s.tenants.mu.Lock()
	defer s.tenants.mu.Unlock()
	s.admitTenants(false)
	s.tenants.closed = true
}

// tenantsEntrance is the tenants' socket, as connections come in there. It implements entrance;
// they are charged as at the control socket.
type tenantsEndpoint struct{ controlEndpoint }

// converse serves one tool.
func (e tenantsEndpoint) converse(c *protocol.Conn, who credentials.Caller) error {
	s := e.Server
	first, who, err := s.greetTool(c, who, "tenants'")
	if err != nil {
		return err
	}
	if err := s.resident(&who); err != nil {
		return err
	}
	return s.serveTool(c, diag.View{Who: &who, Conn: c, Tenants: true, Resident: true, Socket: first.Socket})
}
