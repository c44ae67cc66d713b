package testbed

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// connectTimeout is how long the other machine may take to answer for the first time.
const connectTimeout = time.Minute

// newRemote uses another machine: servers run there, clients here. The product is copied there and removed at the end of the
// connection.
func newRemote(ctx context.Context, in *Environments, _ experiment.Cell) (*Environment, error) {
	if in.Peer == "" {
		return nil, errors.New("setting remote needs another machine: name it with --peer USER@HOST")
	}
	name := in.Peer[strings.LastIndexByte(in.Peer, '@')+1:]
	there, here, err := addresses(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", in.Peer, err)
	}
	a, err := in.Lab.startRemoteAgent(ctx, in.Rsh, in.Peer)
	if err != nil {
		return nil, err
	}
	if _, err := a.ask(ctx, request{Daemon: []string{"--addr", there}}); err != nil {
		a.close()
		return nil, fmt.Errorf("%s: %w", in.Peer, err)
	}
	local := &Host{Lab: in.Lab, Socket: filepath.Join(in.Lab.Dir, "remote"), IP: here}
	d, err := local.Start(ctx, "--addr", here)
	if err != nil {
		a.close()
		return nil, err
	}
	far := &Host{Lab: in.Lab, Socket: a.socket, IP: there, Agent: a}
	return &Environment{
		Route: Route{Server: far, Client: local}, Daemons: []*Daemon{d}, Label: "servers on " + name,
		Close: func() { d.Stop(); a.close() },
	}, nil
}

// addresses returns the other machine's address, and ours as it sees it.
func addresses(ctx context.Context, name string) (there, here string, err error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "udp4", net.JoinHostPort(name, "4791")) // connecting UDP sends nothing
	if err != nil {
		return "", "", err
	}
	defer c.Close()
	there, _, err1 := net.SplitHostPort(c.RemoteAddr().String())
	here, _, err2 := net.SplitHostPort(c.LocalAddr().String())
	return there, here, errors.Join(err1, err2)
}

// startRemoteAgent copies the product to another machine and starts an agent there.
func (l *Lab) startRemoteAgent(ctx context.Context, rsh []string, peer string) (*Agent, error) {
	if len(rsh) == 0 {
		rsh = []string{"ssh", "-o", "BatchMode=yes"}
	}
	at := func(command string) []string { return append(rsh[:len(rsh):len(rsh)], peer, command) }
	out, err := l.Run(ctx, at("mktemp -d /tmp/vrdma-peer.XXXXXXXX")...)
	dir := strings.TrimSpace(LastLines(out, 1))
	if err != nil || !strings.HasPrefix(dir, "/tmp/vrdma-peer.") {
		return nil, fmt.Errorf("%s cannot be reached: %w", peer, errors.Join(err, errors.New("mktemp printed "+fmt.Sprintf("%q", dir))))
	}
	remove := func() { l.Run(context.WithoutCancel(ctx), at("rm -rf "+dir)...) } // the machine may be unreachable
	for _, name := range append([]string{"vrdma"}, products...) {
		if err := l.copyToRemote(ctx, at(fmt.Sprintf("cat >%s/%s && chmod 755 %[1]s/%[2]s", dir, name)), filepath.Join(l.Dir, name)); err != nil {
			remove()
			return nil, err
		}
	}
	// The agent copies itself to a directory of its own, and removes this one.
	c := l.Command(ctx, at(fmt.Sprintf("exec %s/vrdma bench agent --remove", dir))...)
	var said Transcript
	c.Stderr = &said
	in, err1 := c.StdinPipe()
	from, err2 := c.StdoutPipe()
	if err := errors.Join(err1, err2, c.Start()); err != nil {
		remove()
		return nil, err
	}
	a := &Agent{to: in, from: bufio.NewReader(from)}
	ended := make(chan struct{})
	a.close = sync.OnceFunc(func() {
		in.Close() // the agent then stops all it started
		go func() {
			c.Wait() // the exit status does not matter
			close(ended)
		}()
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			c.Cancel()
			<-ended
		}
	})
	timeout, cancel := context.WithTimeoutCause(ctx, connectTimeout, Timeout(connectTimeout))
	defer cancel()
	stop := context.AfterFunc(timeout, a.close)
	defer stop()
	hello, err := a.read(timeout)
	if err != nil {
		a.close()
		remove()
		return nil, fmt.Errorf("vrdma does not run on %s: %w\n%s", peer, err, LastLines(said.String(), 5))
	}
	a.vrdma, a.socket = hello.Vrdma, hello.Socket
	return a, nil
}

// copyToRemote runs a command with a file as its standard input.
func (l *Lab) copyToRemote(ctx context.Context, argv []string, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	ctx, cancel := context.WithTimeoutCause(ctx, ToolTimeout, Timeout(ToolTimeout))
	defer cancel()
	var said Transcript
	c := l.Command(ctx, argv...)
	c.Stdin, c.Stdout, c.Stderr = f, &said, &said
	if err := c.Run(); err != nil {
		return Failure(ctx, argv, err, said.String())
	}
	return nil
}
