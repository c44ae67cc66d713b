package testbed

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// A Namespace is a network namespace. A process holds it open and ends with its input, so it never outlives us.
type Namespace struct {
	holder *exec.Cmd
	input  io.Closer
	// private namespaces are in a user namespace of their own, which any user may make.
	private bool
}

// NamespaceRemedy says what to do where no namespace can be made.
func (l *Lab) NamespaceRemedy() string {
	const allow = "allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces above 0, " +
		"on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0)"
	if l.User != nil { // we are root and run programs as another user
		return allow
	}
	return "run this as root, or " + allow
}

// NewNamespace makes a network namespace. Without root it also makes a user namespace.
func (l *Lab) NewNamespace(ctx context.Context) (*Namespace, error) {
	if os.Getuid() == 0 && l.User == nil {
		if s, err := l.holdNamespace(ctx, []string{"unshare", "--net"}, false); err == nil || ctx.Err() != nil {
			return s, err
		}
	}
	s, err := l.holdNamespace(ctx, []string{"unshare", "--user", "--map-root-user", "--net"}, true)
	if err != nil {
		return nil, fmt.Errorf("no network namespace: %w; %s", err, l.NamespaceRemedy())
	}
	return s, nil
}

// namespaceBeside makes another network namespace in the same user namespace.
func (l *Lab) namespaceBeside(ctx context.Context, s *Namespace) (*Namespace, error) {
	return l.holdNamespace(ctx, append(s.Enter(), "unshare", "--net"), s.private)
}

// holdNamespace starts the process that holds a namespace, and waits until it prints "ready".
func (l *Lab) holdNamespace(ctx context.Context, unshare []string, private bool) (*Namespace, error) {
	var diag strings.Builder
	c := l.Command(ctx, append(unshare, "sh", "-c", "ip link set lo up && echo ready && exec cat")...)
	c.Stderr = &diag
	in, err1 := c.StdinPipe()
	out, err2 := c.StdoutPipe()
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	if err := c.Start(); err != nil {
		return nil, err
	}
	s := &Namespace{holder: c, input: in, private: private}
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		s.Close()
		return nil, fmt.Errorf("%s: %s", strings.Join(unshare, " "), strings.TrimSpace(diag.String()))
	}
	return s, nil
}

// Enter returns the words before a command that run it in the namespace. Entering a user namespace clears the parent death signal, so
// setpriv sets it again.
func (s *Namespace) Enter() []string {
	at := filepath.Join("/proc", fmt.Sprint(s.holder.Process.Pid), "ns")
	if !s.private {
		return []string{"nsenter", "--net=" + at + "/net", "--"}
	}
	return []string{"nsenter", "--user=" + at + "/user", "--preserve-credentials", "--net=" + at + "/net", "--", "setpriv", "--pdeathsig", "KILL", "--"}
}

// Close ends the namespace.
func (s *Namespace) Close() {
	s.input.Close()
	s.holder.Wait() // the exit status does not matter
}
