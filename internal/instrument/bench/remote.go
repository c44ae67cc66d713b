package bench

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

// greeting is how long the other machine may take to answer for the first time.
const greeting = time.Minute

// withPeer measures with another machine: servers run there, clients here. The product is copied there, and
// gone with the line.
func withPeer(ctx context.Context, in *Environments, _ experiment.Cell) (*place, error) {
	if in.Peer == "" {
		return nil, errors.New("setting remote needs another machine: name it with --peer USER@HOST")
	}
	name := in.Peer[strings.LastIndexByte(in.Peer, '@')+1:]
	there, here, err := addresses(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", in.Peer, err)
	}
	a, err := in.Lab.reach(ctx, in.Rsh, in.Peer)
	if err != nil {
		return nil, err
	}
	if _, err := a.ask(ctx, question{Daemon: []string{"--addr", there}}); err != nil {
		a.end()
		return nil, fmt.Errorf("%s: %w", in.Peer, err)
	}
	local := &Host{lab: in.Lab, Socket: filepath.Join(in.Lab.Dir, "remote"), IP: here}
	d, err := local.Start(ctx, "--addr", here)
	if err != nil {
		a.end()
		return nil, err
	}
	far := &Host{lab: in.Lab, Socket: a.socket, IP: there, far: a}
	return &place{
		route: Route{Server: far, Client: local}, daemons: []*daemon{d}, label: "servers on " + name,
		close: func() { d.stop(); a.end() },
	}, nil
}

// addresses are the other machine's, and ours as it sees us.
func addresses(ctx context.Context, name string) (there, here string, err error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "udp4", net.JoinHostPort(name, "4791")) // sends nothing
	if err != nil {
		return "", "", err
	}
	defer c.Close()
	there, _, err1 := net.SplitHostPort(c.RemoteAddr().String())
	here, _, err2 := net.SplitHostPort(c.LocalAddr().String())
	return there, here, errors.Join(err1, err2)
}

// reach copies the product to another machine and starts an agent there.
func (l *Lab) reach(ctx context.Context, rsh []string, peer string) (*agent, error) {
	if len(rsh) == 0 {
		rsh = []string{"ssh", "-o", "BatchMode=yes"}
	}
	at := func(command string) []string { return append(rsh[:len(rsh):len(rsh)], peer, command) }
	out, err := l.Run(ctx, at("mktemp -d /tmp/vrdma-peer.XXXXXXXX")...)
	dir := strings.TrimSpace(lastLines(out, 1))
	if err != nil || !strings.HasPrefix(dir, "/tmp/vrdma-peer.") {
		return nil, fmt.Errorf("%s cannot be reached: %w", peer, errors.Join(err, errors.New("mktemp printed "+fmt.Sprintf("%q", dir))))
	}
	remove := func() { l.Run(context.WithoutCancel(ctx), at("rm -rf "+dir)...) } // the machine may be gone
	for _, name := range append([]string{"vrdma"}, products...) {
		if err := l.send(ctx, at(fmt.Sprintf("cat >%s/%s && chmod 755 %[1]s/%[2]s", dir, name)), filepath.Join(l.Dir, name)); err != nil {
			remove()
			return nil, err
		}
	}
	// The agent makes a directory of its own, and removes this one.
	c := l.command(ctx, at(fmt.Sprintf("exec %s/vrdma bench agent --remove", dir))...)
	var said transcript
	c.Stderr = &said
	in, err1 := c.StdinPipe()
	from, err2 := c.StdoutPipe()
	if err := errors.Join(err1, err2, c.Start()); err != nil {
		remove()
		return nil, err
	}
	a := &agent{to: in, from: bufio.NewReader(from)}
	ended := make(chan struct{})
	a.end = sync.OnceFunc(func() {
		in.Close() // it ends what it started
		go func() {
			c.Wait() // its status says nothing more
			close(ended)
		}()
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			c.Cancel()
			<-ended
		}
	})
	timeout, cancel := context.WithTimeoutCause(ctx, greeting, tooLong(greeting))
	defer cancel()
	stop := context.AfterFunc(timeout, a.end)
	defer stop()
	hello, err := a.read(timeout)
	if err != nil {
		a.end()
		remove()
		return nil, fmt.Errorf("vrdma does not run on %s: %w\n%s", peer, err, lastLines(said.String(), 5))
	}
	a.vrdma, a.socket = hello.Vrdma, hello.Socket
	return a, nil
}

// send gives a file to a command.
func (l *Lab) send(ctx context.Context, argv []string, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	ctx, cancel := context.WithTimeoutCause(ctx, toolTimeout, tooLong(toolTimeout))
	defer cancel()
	var said transcript
	c := l.command(ctx, argv...)
	c.Stdin, c.Stdout, c.Stderr = f, &said, &said
	if err := c.Run(); err != nil {
		return failure(ctx, argv, err, said.String())
	}
	return nil
}
