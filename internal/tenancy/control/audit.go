package control

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"vrdma.dev/vrdma/internal/events"
)

const (
	// auditSize is the size at which an audit file is rotated.
	auditSize = 8 << 20
	// auditFiles is how many files are kept, the current one included.
	auditFiles = 5
	// mostAudited bounds the entries that wait for the disk.
	mostAudited = 4096
)

// An AuditLog keeps the changes that people made, and what the daemon enforced because of them, in a file: one event a line, as JSON.
// The file FILE is renamed to FILE.1 when it is full, and so on; the oldest is removed.
type AuditLog struct {
	path string
	size int64
	log  *slog.Logger

	queue chan events.Event
	ended chan struct{}

	mu     sync.Mutex
	missed uint64   // guarded by mu; entries that did not fit into the queue
	closed bool     // guarded by mu
	file   *os.File // the writer's
	at     int64    // the writer's: the file's size
}

// OpenAudit opens an audit log. Only its owner can read it. later: the file and its directory are made with the first entry, and an
// error is logged then.
func OpenAudit(path string, later bool, log *slog.Logger) (*AuditLog, error) {
	return openAudit(path, later, auditSize, log)
}

func openAudit(path string, later bool, size int64, log *slog.Logger) (*AuditLog, error) {
	a := &AuditLog{path: path, size: size, log: log, queue: make(chan events.Event, mostAudited), ended: make(chan struct{})}
	if !later {
		if err := a.open(); err != nil {
			return nil, fmt.Errorf("the audit log: %w", err)
		}
	}
	go a.write()
	return a, nil
}

// Audited reports whether an event belongs into an audit log: who changed what, and which connections a change revoked. Programs can
// cause other events at will, and would push these out.
func Audited(e *events.Event) bool {
	switch e.Verb {
	case events.Applied, events.Deleted, events.Revoked:
		return true
	}
	return false
}

// Path is the path of the current file.
func (a *AuditLog) Path() string {
	if a == nil {
		return ""
	}
	return a.path
}

// record queues events. It does not wait for the disk, because the engine's loop reports events, too. An entry that does not fit is
// counted in the next one.
func (a *AuditLog) record(list []events.Event) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, e := range list {
		if a.closed || !Audited(&e) {
			continue
		}
		e.Missed += a.missed
		select {
		case a.queue <- e:
			a.missed = 0
		default:
			a.missed++
		}
	}
}

// Close writes what is queued and closes the file.
func (a *AuditLog) Close() error {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	if !a.closed {
		a.closed = true
		close(a.queue)
	}
	a.mu.Unlock()
	<-a.ended
	return nil
}

// write writes queued events until the log is closed, and syncs the file when the queue is empty.
func (a *AuditLog) write() {
	defer close(a.ended)
	defer func() { a.file.Close() }() // does nothing without a file
	for e := range a.queue {
		err := a.append(&e)
		if err == nil && len(a.queue) == 0 {
			err = a.file.Sync()
		}
		if err != nil {
			a.log.Error("a change is missing in the audit log", "file", a.path, "verb", string(e.Verb), "object", e.Object.String(), "error", err)
		}
	}
}

func (a *AuditLog) open() error {
	if err := os.MkdirAll(filepath.Dir(a.path), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(a.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return err
	}
	a.file, a.at = f, info.Size()
	return nil
}

func (a *AuditLog) append(e *events.Event) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if a.file == nil {
		if err := a.open(); err != nil {
			return err
		}
	}
	if a.at > 0 && a.at+int64(len(line))+1 > a.size {
		if err := a.rotate(); err != nil {
			return err
		}
	}
	n, err := a.file.Write(append(line, '\n'))
	a.at += int64(n)
	return err
}

// rotate renames the files and begins a new one.
func (a *AuditLog) rotate() error {
	for i := auditFiles - 1; i > 0; i-- {
		if err := os.Rename(auditName(a.path, i-1), auditName(a.path, i)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	old := a.file
	if err := a.open(); err != nil {
		return err
	}
	return old.Close()
}

func auditName(path string, age int) string {
	if age == 0 {
		return path
	}
	return fmt.Sprintf("%s.%d", path, age)
}

// ReadAudit calls f for each entry of an audit log, oldest first. A line that a crash cut off is left out.
func ReadAudit(path string, f func(*events.Event) error) error {
	found := false
	for age := auditFiles - 1; age >= 0; age-- {
		file, err := os.Open(auditName(path, age))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		found = true
		err = readEntries(file, f)
		file.Close()
		if err != nil {
			return err
		}
	}
	if !found {
		return fmt.Errorf("there is no audit log %s: %w", path, fs.ErrNotExist)
	}
	return nil
}

func readEntries(r io.Reader, f func(*events.Event) error) error {
	b := bufio.NewReader(r)
	for {
		line, err := b.ReadBytes('\n')
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		var e events.Event
		if json.Unmarshal(line, &e) != nil {
			continue
		}
		if err := f(&e); err != nil {
			return err
		}
	}
}
