package launch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrAbsent is a Probe's error when nobody listens on the socket.
var ErrAbsent = errors.New("no daemon answers")

// A Daemon describes the daemon that a probe found.
type Daemon struct {
	Pid       int
	Version   string
	Protocol  uint32
	Ephemeral bool // a launcher started it, and may replace it
	Sessions  int  // opened devices, or Unknown
	NoDevice  bool // it has no default NIC
}

// Unknown is the number of sessions of a daemon with another protocol version.
const Unknown = -1

// A Launcher ensures that a daemon serves a place. Its functions need the protocol and the binary, which
// this package does not know.
type Launcher struct {
	Place    Place
	Version  string
	Protocol uint32
	// Probe asks the daemon for its identity; ErrAbsent if there is none.
	Probe func(context.Context, Place) (Daemon, error)
	// Spawn starts a daemon and returns when it answers.
	Spawn func(context.Context, Place) error
	// Stop asks a daemon to end.
	Stop func(context.Context, Place) error
}

// Ensure returns when a daemon of a compatible version serves the place. The lease keeps an ephemeral daemon
// running until it is closed. It is nil if this user may not write to the place, where no ephemeral
// daemon runs.
func (l *Launcher) Ensure(ctx context.Context) (lease *os.File, d Daemon, err error) {
	lease, err = waitLock(ctx, l.Place.lease(), unix.LOCK_SH)
	if err != nil {
		if ctx.Err() != nil {
			return nil, d, err
		}
		lease = nil
	}
	d, err = l.ensure(ctx, lease)
	if err != nil {
		lease.Close()
		return nil, d, err
	}
	return lease, d, nil
}

func (l *Launcher) ensure(ctx context.Context, lease *os.File) (Daemon, error) {
	d, err := l.Probe(ctx, l.Place)
	if err == nil && l.suits(d) {
		return d, nil
	}
	if err != nil && !errors.Is(err, ErrAbsent) {
		return d, err
	}

	// One launcher starts or replaces the daemon; the others find it.
	lock, err := waitLock(ctx, l.Place.lock(), unix.LOCK_EX)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
		return d, fmt.Errorf("cannot start a daemon: %w", l.Place.notOurs())
	}
	if err != nil {
		return d, fmt.Errorf("cannot start a daemon: %w", err)
	}
	defer unlock(lock)
	d, err = l.Probe(ctx, l.Place)
	if err == nil {
		switch {
		case l.suits(d):
			return d, nil
		case !d.Ephemeral || !idle(d, lease):
			return l.accept(d)
		}
		if err := l.replace(ctx, d); err != nil {
			return d, err
		}
	} else if !errors.Is(err, ErrAbsent) {
		return d, err
	}
	if err := l.Spawn(ctx, l.Place); err != nil {
		return d, err
	}
	return l.Probe(ctx, l.Place)
}

// notOurs returns an error for a place in which this user may not start a daemon.
func (p Place) notOurs() error {
	dir := filepath.Dir(p.Socket)
	whose := "its owner"
	if info, err := os.Stat(dir); err == nil {
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			whose = userName(int(st.Uid))
		}
	}
	return fmt.Errorf("no daemon runs at %s, and %s may not start one in %s: have %s run vrdma daemon --socket %s --mode 0666, or choose another path with --socket",
		p.Socket, userName(os.Geteuid()), dir, whose, p.Socket)
}

// userName formats a user for people.
func userName(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return fmt.Sprintf("%s (uid %d)", u.Username, uid)
	}
	return fmt.Sprintf("user %d", uid)
}

// suits reports whether d can be used instead of a new daemon.
func (l *Launcher) suits(d Daemon) bool {
	return d.Protocol == l.Protocol && (d.Version == l.Version || !d.Ephemeral)
}

// accept returns a daemon that must not be replaced, or an error if its protocol version differs.
func (l *Launcher) accept(d Daemon) (Daemon, error) {
	if d.Protocol == l.Protocol {
		return d, nil
	}
	return d, fmt.Errorf("the daemon at %s (pid %d) is vrdma %s, and this is vrdma %s with protocol %d, which the daemon does not support: stop it with vrdma stop when its programs have ended, or choose another path with --socket",
		l.Place.Socket, d.Pid, d.Version, l.Version, l.Protocol)
}

// idle reports whether no program uses d. If d does not report sessions, no other process may hold a
// lease.
func idle(d Daemon, lease *os.File) bool {
	if d.Sessions != Unknown {
		return d.Sessions == 0
	}
	if lease == nil || unix.Flock(int(lease.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return false
	}
	return unix.Flock(int(lease.Fd()), unix.LOCK_SH) == nil
}

// replace stops an idle daemon of another version and waits until it has ended.
func (l *Launcher) replace(ctx context.Context, d Daemon) error {
	if err := l.Stop(ctx, l.Place); err != nil {
		return fmt.Errorf("cannot stop the idle daemon of version %s (pid %d): %w", d.Version, d.Pid, err)
	}
	return l.Place.AwaitEnd(ctx)
}
