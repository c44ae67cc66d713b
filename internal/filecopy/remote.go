package filecopy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

// ssh starts the other side, as with rsync. Two lines go over ssh's pipe: a key for this copy, and the address where the other
// side listens. The files go over RDMA.
//
//	here  ── vrdma-cp 1 KEY ─────────────▶ there
//	here ◀── vrdma-cp 1 PORT ADDRESS… ──── there
const greeting = "vrdma-cp 1 "

// A Remote is the other side, started through ssh.
type Remote struct {
	Key   []byte
	Addrs []string

	cmd   *exec.Cmd
	stdin io.WriteCloser
}

// Start starts the other side: rsh is the command that reaches a host, there the command to run on it.
func Start(ctx context.Context, rsh []string, host string, there []string) (*Remote, error) {
	argv := append(slices.Clone(rsh), strings.Trim(host, "[]"))
	argv = append(argv, there...)
	r := &Remote{Key: NewKey(), cmd: exec.CommandContext(ctx, argv[0], argv[1:]...)}
	r.cmd.Stderr = os.Stderr
	r.cmd.Cancel = func() error { return r.cmd.Process.Signal(syscall.SIGTERM) }
	r.cmd.WaitDelay = 5 * time.Second
	var err error
	if r.stdin, err = r.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := r.cmd.Start(); err != nil {
		return nil, err
	}
	line, err := r.greet(out)
	if err != nil {
		r.stdin.Close()
		if e := r.cmd.Wait(); e != nil {
			err = fmt.Errorf("%s: %w", strings.Join(argv, " "), e)
		}
		return nil, err
	}
	go io.Copy(io.Discard, out)
	return r, r.find(line, host)
}

// greet sends the key and reads the address of the other side. It skips output of the shell's start-up files.
func (r *Remote) greet(out io.Reader) (string, error) {
	// Writing to an ended process fails. The missing answer is noticed below.
	fmt.Fprintf(r.stdin, "%s%s\n", greeting, r.Key)
	in := bufio.NewReaderSize(io.LimitReader(out, 1<<20), 4096)
	for {
		line, err := in.ReadString('\n')
		if rest, found := strings.CutPrefix(strings.TrimSpace(line), strings.TrimSpace(greeting)); found {
			return rest, nil
		}
		if err != nil {
			return "", errors.New("the other side ended before it said where it listens: is vrdma installed there? (--remote-vrdma names it)")
		}
	}
}

// find parses the answer of the other side. Its own addresses come first.
func (r *Remote) find(line, host string) error {
	words := strings.Fields(line)
	if len(words) == 0 || len(words) > 64 {
		return violation("the greeting %.80q", line)
	}
	port := words[0]
	for _, a := range words[1:] {
		if _, err := netip.ParseAddr(a); err != nil {
			return violation("%.80q, which is no address", a)
		}
		r.Addrs = append(r.Addrs, net.JoinHostPort(a, port))
	}
	if _, after, found := strings.Cut(host, "@"); found {
		host = after
	}
	if by := net.JoinHostPort(strings.Trim(host, "[]"), port); !slices.Contains(r.Addrs, by) {
		r.Addrs = append(r.Addrs, by)
	}
	return nil
}

// Close ends the other side and waits for it.
func (r *Remote) Close() error {
	r.stdin.Close()
	return r.cmd.Wait()
}

// Answer is the other side: it serves clients with the key from stdin, until stdin ends.
func Answer(ctx context.Context, p Transport, stdin io.Reader, stdout io.Writer, log func(string, ...any)) error {
	in := bufio.NewReader(io.LimitReader(stdin, 4096))
	line, err := in.ReadString('\n')
	key, found := strings.CutPrefix(strings.TrimSpace(line), strings.TrimSpace(greeting)+" ")
	if err != nil || !found || len(key) < leastKey {
		return errors.New("no key on standard input: this is started by `vrdma cp`, through ssh")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		io.Copy(io.Discard, stdin)
		cancel()
	}()
	v := &Server{Files: Everywhere(), Key: []byte(key), Write: true, Overwrite: true, Log: log}
	return v.Serve(ctx, p, ":0", func(addr string) {
		_, port, _ := net.SplitHostPort(addr)
		fmt.Fprintf(stdout, "%s%s %s\n", greeting, port, strings.Join(reachable(p.addresses()), " "))
	})
}

// reachable sorts addresses by how likely the client reaches them: the one that ssh used first, loopback last.
func reachable(list []netip.Addr) []string {
	by := ""
	if f := strings.Fields(os.Getenv("SSH_CONNECTION")); len(f) == 4 {
		by = f[2]
	}
	rank := func(a netip.Addr) int {
		switch {
		case a.String() == by:
			return 0
		case a.IsLoopback():
			return 3
		case a.IsLinkLocalUnicast():
			return 2
		}
		return 1
	}
	list = slices.DeleteFunc(slices.Clone(list), func(a netip.Addr) bool { return a.IsLinkLocalUnicast() })
	slices.SortStableFunc(list, func(a, b netip.Addr) int { return rank(a) - rank(b) })
	var out []string
	for _, a := range list {
		out = append(out, a.String())
	}
	return out
}
