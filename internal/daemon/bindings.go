package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"vrdma/internal/control"
	"vrdma/internal/frontdoor"
	"vrdma/internal/launch"
	"vrdma/internal/tenant"
)

// Which NIC is for which container is written beside the daemon's socket (PATH.bound), so that it holds when the daemon is started again: a
// second container is refused, and the interfaces of the first are served again. What a network namespace is called (its
// cookie, its path) means something only until the host is booted again, so the file says when that was.

// boundFile is what is written.
type boundFile struct {
	Boot  string       `json:"boot"`
	Bound []savedBound `json:"bound"`
}

type savedBound struct {
	control.Binding
	Since time.Time `json:"since"`
}

// bindings are those of a daemon before, until their NICs are here, and where those of this one are written.
type bindings struct {
	path   string
	saving sync.Mutex // held from looking at what is bound until it is written; before mu
	mu     sync.Mutex // guards what is below
	left   []savedBound
	// plug are those that were handed over and whose container had an interface.
	plug []toPlug
}

// A toPlug is a container that is to have its interface again.
type toPlug struct {
	control.Binding
	tries int // that failed
}

// mostBound bounds the file: a daemon of ours has written it, as far as we know.
const mostBound = 16 << 20

// read takes what a daemon before us has written. What cannot be used is left out: then the first workload to come has the NIC.
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
	if boot, err := bootLabel(); err != nil || boot != file.Boot {
		return err // namespaces have other numbers now
	}
	b.left = slices.DeleteFunc(file.Bound, func(s savedBound) bool { return !s.NIC.Valid() || s.Cookie == 0 })
	return nil
}

// of hands over those of a NIC that is put in.
func (b *bindings) of(k tenant.Key) (out []frontdoor.Binding) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left = slices.DeleteFunc(b.left, func(s savedBound) bool {
		if s.NIC != k {
			return false
		}
		if s.Plug {
			b.plug = append(b.plug, toPlug{Binding: s.Binding})
		}
		out = append(out, frontdoor.Binding{Cookie: s.Cookie, Path: s.Namespace, Name: s.Title(), Note: s.Binding, Ends: s.Ends, Since: s.Since})
		return true
	})
	return out
}

// again keeps some that could not have their interface yet.
func (b *bindings) again(list []toPlug) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.plug = append(b.plug, list...)
}

// toPlug hands over the containers that are to have their interface again.
func (b *bindings) toPlug() []toPlug {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := b.plug
	b.plug = nil
	return list
}

// drop forgets those of containers that have ended before their NIC was put in.
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

// write writes what is bound now.
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
	if file.Boot, err = bootLabel(); err != nil {
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
