package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrTaken means that a daemon serves the place already.
var ErrTaken = errors.New("another daemon serves this socket")

// errBusy means that somebody else holds the lock at this moment.
var errBusy = errors.New("locked by somebody else")

// lockFile opens path and locks it, at once or not at all. The lock lives as long
// as the open file, duplicates in other processes included.
func lockFile(path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
		f, err = os.Open(path) // enough for flock: a directory mounted read-only
	}
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errBusy
		}
		return nil, fmt.Errorf("flock %s: %w", path, err)
	}
	return f, nil
}

// waitLock is lockFile that tries until ctx ends. It polls, because a blocked
// flock cannot be given up.
func waitLock(ctx context.Context, path string, how int) (*os.File, error) {
	for {
		f, err := lockFile(path, how)
		if !errors.Is(err, errBusy) {
			return f, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%s stayed locked by another process: %w", path, ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// A Claim is a daemon's right to a place, for as long as it lives.
type Claim struct {
	place Place
	file  *os.File
}

// ephemeralWord stands behind the process number of a daemon that a launcher
// started: such a one may be replaced.
const ephemeralWord = "ephemeral"

// Ephemeral reports whether the daemon that claimed p last was started by a
// launcher.
func (p Place) Ephemeral() bool {
	text, err := os.ReadFile(p.pid())
	return err == nil && strings.Contains(string(text), ephemeralWord)
}

// Served reports whether a daemon lives that claimed p. When it no longer does, its
// socket and directory are gone too.
func (p Place) Served() bool {
	f, err := lockFile(p.pid(), unix.LOCK_SH)
	if err != nil {
		return errors.Is(err, errBusy)
	}
	f.Close()
	return false
}

// AwaitEnd waits until the daemon that claimed p is gone.
func (p Place) AwaitEnd(ctx context.Context) error {
	for p.Served() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("the daemon at %s is still there: %w", p.Socket, ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
	return nil
}

// Claim takes the place for a daemon and removes what a dead one left. The
// directory has to exist.
func (p Place) Claim(ephemeral bool) (*Claim, error) {
	name := p.pid()
	// Those who only look (Served) hold the lock for a moment.
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	f, err := waitLock(ctx, name, unix.LOCK_EX)
	if ctx.Err() != nil {
		pid, _ := os.ReadFile(name)
		return nil, fmt.Errorf("%w: %s (pid %s): use it, stop it with vrdma stop, or choose another place with --socket",
			ErrTaken, p.Socket, bytes.TrimSpace(pid))
	}
	if err != nil {
		return nil, fmt.Errorf("cannot claim %s: %w", p.Socket, err)
	}
	c := &Claim{place: p, file: f}
	if err := errors.Join(c.sign(ephemeral), c.sweep()); err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot claim %s: %w", p.Socket, err)
	}
	return c, nil
}

// sign writes our process number into the lock file, for people and messages.
func (c *Claim) sign(ephemeral bool) error {
	if err := c.file.Truncate(0); err != nil {
		return err
	}
	line := strconv.Itoa(os.Getpid())
	if ephemeral {
		line += " " + ephemeralWord
	}
	_, err := c.file.WriteAt([]byte(line+"\n"), 0)
	return err
}

// sweep removes the socket and the directory beside it.
func (c *Claim) sweep() error {
	info, err := os.Lstat(c.place.Socket)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s exists and is not a socket: choose another place with --socket", c.place.Socket)
	default:
		if err := os.Remove(c.place.Socket); err != nil {
			return fmt.Errorf("cannot remove the stale socket: %w", err)
		}
	}
	return os.RemoveAll(c.place.Dir())
}

// Release gives the place up and leaves nothing there but locks and log. The lock
// files stay: whoever has one open would otherwise lock a file that is no longer
// there.
func (c *Claim) Release() error {
	return errors.Join(c.sweep(), c.file.Truncate(0), c.file.Close())
}

// Retire reports whether nobody relies on the daemon any more. If so it holds the
// lease exclusively from now on and the socket is gone: whoever comes next waits
// until the process has ended, and starts another daemon.
func (c *Claim) Retire() bool {
	f, err := lockFile(c.place.lease(), unix.LOCK_EX)
	if err != nil {
		return false
	}
	if err := os.Remove(c.place.Socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.Close()
		return false
	}
	retired = f // open until exit
	return true
}

// retired keeps the lease from the garbage collector, which would close it.
var retired *os.File
