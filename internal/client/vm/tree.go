package vm

import (
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"vrdma.dev/vrdma/internal/client/vm/vmproto"
)

// A tree sends the sysfs tree of a NIC to an agent: all of it at first, then the changes.
type tree struct {
	dir string

	mu   sync.Mutex
	sent map[string]string // guarded by mu
}

// send sends the changes. It skips a file that disappears meanwhile.
func (t *tree) send(l *link) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sent == nil {
		t.sent = make(map[string]string)
	}
	filepath.WalkDir(t.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil
		}
		name, err := filepath.Rel(t.dir, path)
		if err != nil {
			return nil
		}
		content, err := os.ReadFile(path) // follows links
		if old, ok := t.sent[name]; err != nil || ok && old == string(content) || len(content) > vmproto.MaxBody/2 {
			return nil
		}
		t.sent[name] = string(content)
		l.sendLater(vmproto.File, 0, vmproto.FileBody(name, content))
		return nil
	})
}

// sendTree sends the changes of the sysfs tree.
func (m *guest) sendTree() { m.tree.send(m.link) }
