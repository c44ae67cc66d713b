package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrTaken means that another daemon serves the place.
var ErrTaken = errors.New("another daemon serves this socket")

// errBusy means that another process holds the lock.
var errBusy = errors.New("locked by another process")

// lockFile opens path and locks it without waiting. The lock lasts as long as the open file, including
// duplicates in other processes. The holder of an exclusive lock may remove the file before it unlocks
// (unlock), so a lock counts only if the path still names the locked file.
func lockFile(path string, how int) (*os.File, error) {
	for {
		f, err := openPlain(path, os.O_RDWR|os.O_CREATE, 0o600)
		if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
			// Read-only is enough for flock, in a directory mounted read-only. If the file does not
			// exist, the first error says more.
			if g, e := openPlain(path, os.O_RDONLY, 0); e == nil {
				f, err = g, nil
			}
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
		if sameFile(f, path) {
			return f, nil
		}
		f.Close()
	}
}

func sameFile(f *os.File, path string) bool {
	there, err1 := os.Lstat(path)
	here, err2 := f.Stat()
	return err1 == nil && err2 == nil && os.SameFile(there, here)
}

// unlock removes the file of an exclusive lock and unlocks it.
func unlock(f *os.File) error { return unlockAt(f.Name(), f) }

// unlockAt is unlock for a file whose name is not in f, because another process has opened it.
func unlockAt(path string, f *os.File) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // the whole place was removed
	}
	return errors.Join(err, f.Close())
}

// waitLock retries lockFile until ctx ends. It polls, because a blocked flock cannot be cancelled.
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

// A Claim is a daemon's ownership of a place until it ends.
type Claim struct {
	place Place
	file  *os.File
	lease *os.File // once retired
	// inherited: the service manager made the socket, and keeps it.
	inherited bool
}

// ephemeralWord follows the process number of a daemon that a launcher started and may replace.
const ephemeralWord = "ephemeral"

// Ephemeral reports whether a launcher started the daemon that claimed p last.
func (p Place) Ephemeral() bool {
	text, err := readPlain(p.pid())
	return err == nil && strings.Contains(string(text), ephemeralWord)
}

// Served reports whether the daemon that claimed p runs. After it has ended, its socket and directory
// are gone.
func (p Place) Served() bool {
	f, err := openPlain(p.pid(), os.O_RDONLY, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// AwaitEnd waits until the daemon that claimed p has ended.
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

// Claim takes the place for a daemon and removes the files of a dead daemon. The directory must exist.
func (p Place) Claim(ephemeral bool) (*Claim, error) { return p.claim(ephemeral, false) }

// ClaimAround is Claim for a daemon that inherited the socket: the socket stays, also when the daemon ends.
func (p Place) ClaimAround() (*Claim, error) { return p.claim(false, true) }

func (p Place) claim(ephemeral, inherited bool) (*Claim, error) {
	name := p.pid()
	// Served holds the lock for a moment.
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	f, err := waitLock(ctx, name, unix.LOCK_EX)
	if err != nil && ctx.Err() != nil { // on a slow machine waitLock may succeed after the timeout
		pid, _ := readPlain(name)
		return nil, fmt.Errorf("%w: %s (pid %s): use it, stop it with vrdma stop, or choose another path with --socket",
			ErrTaken, p.Socket, bytes.TrimSpace(pid))
	}
	if err != nil {
		return nil, fmt.Errorf("cannot claim %s: %w", p.Socket, err)
	}
	c := &Claim{place: p, file: f, inherited: inherited}
	if err := errors.Join(c.sign(ephemeral), c.sweep()); err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot claim %s: %w", p.Socket, err)
	}
	return c, nil
}

// File is the lock of the claim, for the next daemon (Inherit).
func (c *Claim) File() *os.File { return c.file }

// Inherit makes a claim of the lock of another daemon at p, which it closes in the end. Sign completes it. kept: the service manager
// made the socket, which stays when the daemon ends.
func (p Place) Inherit(lock *os.File, kept bool) (*Claim, error) {
	if !sameFile(lock, p.pid()) {
		return nil, fmt.Errorf("the daemon that hands over does not serve %s", p.Socket)
	}
	return &Claim{place: p, file: lock, inherited: kept}, nil
}

// Sign makes this process the owner of an inherited claim.
func (c *Claim) Sign(ephemeral bool) error { return c.sign(ephemeral) }

// sign writes the process number into the lock file, for people and messages.
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

// sweep removes the socket, unless it was inherited, and the directory beside it.
func (c *Claim) sweep() error {
	if c.inherited {
		return os.RemoveAll(c.place.Dir())
	}
	info, err := os.Lstat(c.place.Socket)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s exists and is not a socket: choose another path with --socket", c.place.Socket)
	default:
		if err := os.Remove(c.place.Socket); err != nil {
			return fmt.Errorf("cannot remove the stale socket: %w", err)
		}
	}
	return os.RemoveAll(c.place.Dir())
}

// Release gives the place up. It leaves only the log, and the lease file of programs that still run.
func (c *Claim) Release() error {
	err := errors.Join(c.sweep(), unlockAt(c.place.pid(), c.file))
	if c.lease != nil || c.lastUser() {
		err = errors.Join(err, unlock(c.lease))
	}
	return err
}

// Retire reports whether no program relies on the daemon any more. If so, it has removed the socket: the next
// launcher waits until the place is released and starts another daemon. A removed place has no future
// users.
func (c *Claim) Retire() bool {
	if _, err := os.Stat(filepath.Dir(c.place.Socket)); errors.Is(err, fs.ErrNotExist) {
		return true
	}
	if c.place.expected() || !c.lastUser() {
		return false
	}
	if err := os.Remove(c.place.Socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.lease.Close()
		c.lease = nil
		return false
	}
	return true
}

// Expect keeps an unused ephemeral daemon running for a while, for a container that is being started and cannot
// hold a lease. The lease file's modification time has the deadline.
func (p Place) Expect(d time.Duration) error {
	until := time.Now().Add(d)
	return os.Chtimes(p.lease(), until, until)
}

// mostExpected bounds Expect, in case the clock is set back.
const mostExpected = time.Hour

// expected reports whether the deadline of Expect is in the future.
func (p Place) expected() bool {
	info, err := os.Lstat(p.lease())
	if err != nil {
		return false
	}
	left := time.Until(info.ModTime())
	return left > 0 && left < mostExpected
}

// lastUser locks the lease exclusively, unless a program holds it.
func (c *Claim) lastUser() bool {
	lease, err := lockFile(c.place.lease(), unix.LOCK_EX)
	if err != nil {
		return false
	}
	c.lease = lease
	return true
}
