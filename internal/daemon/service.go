package daemon

import (
	"context"
	"fmt"
	"net"
	"time"

	"vrdma.dev/vrdma/internal/exit"
	"vrdma.dev/vrdma/internal/platform/systemd"
)

// service is what the service manager expects of the daemon and has given it.
type service struct {
	notify *systemd.Notifier
	socket *net.UnixListener // nil: the daemon makes its socket
}

// inheritService reads the service manager's variables. They are removed from the environment, so it is called once.
func inheritService() (service, error) {
	v := service{notify: systemd.FromEnvironment()}
	list, err := systemd.Listeners()
	if err != nil {
		return v, exit.Usage("socket activation: %w", err)
	}
	switch len(list) {
	case 0:
	case 1:
		v.socket = list[0]
	default:
		return v, exit.Usage("socket activation: got %d sockets, and the daemon has one: the socket unit needs one ListenSequentialPacket=", len(list))
	}
	return v, nil
}

// checkSocket returns an error if the inherited socket is not the one that programs are told about.
func (v *service) checkSocket(path string) error {
	if v.socket == nil || v.socket.Addr().String() == path {
		return nil
	}
	return exit.Usage("socket activation: the socket unit listens at %s, and the daemon serves %s: set both to one path", v.socket.Addr(), path)
}

// statusInterval is how often the status line of systemctl is checked for changes.
const statusInterval = 5 * time.Second

// followService pings the watchdog and updates the status line until ctx ends. A ping proves that the loop has run a function, and
// so that it ends its passes.
func (d *daemon) followService(ctx context.Context) {
	if !d.service.notify.Used() {
		return
	}
	go d.service.notify.Watch(ctx, func() error { return d.engine.Do(func() {}) }, func(err error) {
		d.log.Warn("the watchdog of the service manager is not pinged", "error", err)
	})
	tick := time.NewTicker(statusInterval)
	defer tick.Stop()
	last := ""
	for {
		if line := d.statusLine(); line != last {
			d.tell(line)
			last = line
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// statusLine is the assignment of the status line.
func (d *daemon) statusLine() string {
	programs := d.server.Sessions()
	return systemd.Status("%s, %s", count(len(d.nics.All()), "NIC"), count(programs, "program and open device", "programs and open devices"))
}

// count formats a number of things.
func count(n int, forms ...string) string {
	switch {
	case n == 1:
		return "1 " + forms[0]
	case len(forms) > 1:
		return fmt.Sprintf("%d %s", n, forms[1])
	}
	return fmt.Sprintf("%d %ss", n, forms[0])
}

// tell sends assignments to the service manager.
func (d *daemon) tell(assignments ...string) {
	if err := d.service.notify.Send(assignments...); err != nil {
		d.log.Warn("cannot notify the service manager", "error", err)
	}
}
