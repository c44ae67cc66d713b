package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/platform/launch"
)

// launcher returns a Launcher that finds or starts the daemon of a place with this binary and
// this protocol.
func launcher(place launch.Place) *launch.Launcher {
	return &launch.Launcher{
		Place: place, Version: version, Protocol: protocol.Version,
		Probe: probe,
		Stop:  stop,
		Spawn: func(ctx context.Context, p launch.Place) error {
			self, err := os.Executable()
			if err != nil {
				return err
			}
			return launch.Spawn(ctx, []string{self, "daemon", "--socket", p.Socket, "--ephemeral", "--detach"}, p.Log())
		},
	}
}

// probe asks the daemon for its identity. A daemon with another protocol version answers only its
// process number.
func probe(ctx context.Context, p launch.Place) (launch.Daemon, error) {
	status, err := protocol.QueryStatus(p.Socket)
	// A killed daemon accepts connections until the kernel has removed its socket.
	for end := time.Now().Add(dying); hungUp(err) && ctx.Err() == nil && time.Now().Before(end); {
		time.Sleep(dying / 500)
		status, err = protocol.QueryStatus(p.Socket)
	}
	var refusal *protocol.Refusal
	switch {
	case err == nil:
		return launch.Daemon{
			Pid: status.Pid, Version: status.Version, Protocol: uint32(status.Protocol),
			Ephemeral: p.Ephemeral(), Sessions: len(status.Sessions), NoDevice: status.Device.Name == "",
		}, nil
	case errors.As(err, &refusal) && errors.Is(err, syscall.EPROTO):
		return launch.Daemon{
			Pid: refusal.DaemonPid, Version: "of another protocol", Ephemeral: p.Ephemeral(), Sessions: launch.Unknown,
		}, nil
	case absent(err):
		return launch.Daemon{}, fmt.Errorf("%w: %w", launch.ErrAbsent, err)
	}
	return launch.Daemon{}, improper(p, err)
}

// improper returns an error with a remedy for a daemon that runs but cannot be used.
func improper(p launch.Place, err error) error {
	var refusal *protocol.Refusal
	if errors.As(err, &refusal) && refusal.Text != "" { // the text contains the remedy
		return fmt.Errorf("the daemon at %s refuses: %w", p.Socket, err)
	}
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("permission denied for the daemon at %s (%w): ask its owner to start it with --mode 0666, or choose another path with --socket", p.Socket, syscall.EACCES)
	}
	return fmt.Errorf("the daemon at %s does not answer properly: %w", p.Socket, err)
}

// dying bounds how long a killed daemon's socket may exist: the kernel frees its memory first.
const dying = 5 * time.Second

// hungUp reports whether err means that the daemon closed the connection or died.
func hungUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// absent reports whether err means that nobody listens.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
}

// stop asks the daemon to end, by a signal if it has another protocol version.
func stop(ctx context.Context, p launch.Place) error {
	err := protocol.StopDaemon(p.Socket)
	var refusal *protocol.Refusal
	if errors.As(err, &refusal) && errors.Is(err, syscall.EPROTO) && refusal.DaemonPid > 1 {
		return syscall.Kill(refusal.DaemonPid, syscall.SIGTERM)
	}
	return err
}
