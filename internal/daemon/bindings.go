package daemon

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"vrdma.dev/vrdma/internal/client/server"
	"vrdma.dev/vrdma/internal/platform/container"
	"vrdma.dev/vrdma/internal/platform/launch"
	"vrdma.dev/vrdma/internal/tenancy/control"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// The file PATH.bound beside the daemon's socket keeps the bindings of NICs to containers over a restart: the next daemon refuses a
// second container and serves the interfaces of the first. The cookie and the path of a network namespace are valid until the next
// boot only, so the file names the boot.

// boundFile is the contents of the file.
type boundFile struct {
	Boot  string       `json:"boot"`
	Bound []savedBound `json:"bound"`
}

type savedBound struct {
	control.Binding
	Since time.Time `json:"since"`
}

// bindings are those that the last daemon wrote, until their NICs exist, and the file.
type bindings struct {
	path   string
	saving sync.Mutex // held from reading the bindings until they are written; before mu
	mu     sync.Mutex // guards the fields below
	left   []savedBound
	// plug are bindings whose NIC exists and whose container had an interface.
	plug []toPlug
}

// A toPlug is a container whose interface is to be made again.
type toPlug struct {
	control.Binding
	tries int // that failed
}

// mostBound bounds the size of the file: another program may have written it.
const mostBound = 16 << 20

// read reads the bindings of the last daemon. It leaves out invalid ones; the first workload that opens such a NIC gets it.
func (b *bindings) read(path string) error {
	b.path = path
	text, err := launch.ReadOwn(path, mostBound)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var file boundFile
	if err := json.Unmarshal(text, &file); err != nil {
		return err
	}
	if boot, err := container.BootLabel(); err != nil || boot != file.Boot {
		return err // after a reboot namespaces have other numbers
	}
	b.left = slices.DeleteFunc(file.Bound, func(s savedBound) bool { return !s.NIC.Valid() || s.Cookie == 0 })
	return nil
}

// of removes and returns the bindings of a NIC that is being created.
func (b *bindings) of(k tenant.Key) (out []server.Binding) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left = slices.DeleteFunc(b.left, func(s savedBound) bool {
		if s.NIC != k {
			return false
		}
		if s.Plug {
			b.plug = append(b.plug, toPlug{Binding: s.Binding})
		}
		out = append(out, server.Binding{Cookie: s.Cookie, Path: s.Namespace, Name: s.Title(), Note: s.Binding, Ends: s.Ends, Since: s.Since})
		return true
	})
	return out
}

// again keeps containers whose interface could not be made yet.
func (b *bindings) again(list []toPlug) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.plug = append(b.plug, list...)
}

// toPlug removes and returns the containers whose interface is to be made again.
func (b *bindings) toPlug() []toPlug {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := b.plug
	b.plug = nil
	return list
}

// drop removes the bindings of containers that ended before their NIC was created.
func (b *bindings) drop(of *control.Binding) (gone []control.Binding) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left = slices.DeleteFunc(b.left, func(s savedBound) bool {
		match := of.Matches(&s.Binding)
		if match {
			gone = append(gone, s.Binding)
		}
		return match
	})
	return gone
}

// write writes the current bindings and those whose NICs do not exist yet.
func (b *bindings) write(now []savedBound) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	file := boundFile{Bound: append(now, b.left...)}
	if len(file.Bound) == 0 {
		if err := os.Remove(b.path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	var err error
	if file.Boot, err = container.BootLabel(); err != nil {
		return err
	}
	text, err := json.Marshal(file)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(b.path), filepath.Base(b.path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), b.path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}
