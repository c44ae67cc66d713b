package daemon

import (
	"strings"

	"vrdma.dev/vrdma/internal/exit"
	"vrdma.dev/vrdma/internal/platform/launch"
	"vrdma.dev/vrdma/internal/tenancy/control"
)

// openAudit opens the file of --audit. A daemon that vrdma run started has none.
func (s *settings) openAudit() (*control.AuditLog, error) {
	path := s.Audit
	if path == "none" || path == "" && s.Ephemeral {
		return nil, nil
	}
	if path == "" {
		path = AuditPath(s.Store, s.place)
	}
	a, err := control.OpenAudit(path, s.Audit == "", s.log)
	if err != nil {
		return nil, exit.Lacks("%w; choose another place with --audit FILE, or keep none with --audit none", err)
	}
	return a, nil
}

// AuditPath is the default file of the audit log of a daemon with this --store.
func AuditPath(store string, place launch.Place) string {
	return strings.TrimSuffix(storePath(store, place), ".db") + ".audit"
}

// Drain implements diag.Operation.
func (d *daemon) Drain(on bool) {
	d.server.Drain(on)
	if on {
		d.log.Info("draining: new programs are refused")
	} else {
		d.log.Info("new programs are admitted again")
	}
}

// Draining implements diag.Operation.
func (d *daemon) Draining() bool { return d.server.Draining() }

// AuditFile implements diag.Operation.
func (d *daemon) AuditFile() string { return d.audit.Path() }
