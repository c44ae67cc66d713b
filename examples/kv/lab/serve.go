package lab

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"vrdma.dev/vrdma/examples/kv/load"
	"vrdma.dev/vrdma/examples/kv/store"
	"vrdma.dev/vrdma/verbs"
)

// A Service has the options of a server.
type Service struct {
	Device   verbs.Options
	Daemon   int    // pid of this host's daemon; 0: unknown
	Listen   string // address and port
	Keys     int
	MaxValue int
	// untilEOF ends the service with its standard input, a pipe from the lab that started it.
	untilEOF bool
}

// Flags adds the options to a set of flags.
func (s *Service) Flags(f *flag.FlagSet) {
	f.StringVar(&s.Listen, "listen", ":7471", "where to listen, for RDMA and TCP")
	f.IntVar(&s.Keys, "keys", 32<<10, "how many keys the store has")
	f.IntVar(&s.MaxValue, "max-value", 4096, "how many bytes a value may have")
	f.BoolVar(&s.untilEOF, "until-eof", false, "end when the standard input ends")
}

// ready begins the line that a server prints when it accepts clients; the address follows.
const ready = "serving at "

// Serve runs a server until the context ends.
func (s Service) Serve(ctx context.Context, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server, err := store.NewServer(ctx, s.Device, store.Config{
		Keys: s.Keys, MaxValue: s.MaxValue, CPU: load.ProcessTime, Daemon: func() uint64 { return load.TimeOf(s.Daemon) },
	})
	if err != nil {
		return err
	}
	at, err := server.Listen(s.Listen)
	if err != nil {
		return errors.Join(err, server.Close())
	}
	fmt.Fprintln(out, ready+at)
	if s.untilEOF {
		go func() {
			io.Copy(io.Discard, os.Stdin)
			cancel()
		}()
	}
	<-ctx.Done()
	return server.Close()
}

// startTimeout is how long a server may take to start on a busy machine.
const startTimeout = time.Minute

// startServer starts a server process. It returns its address and a function that stops it.
func (o *Options) startServer(ctx context.Context, maxValue int) (at string, stop func() error, err error) {
	args := append(o.Start[1:len(o.Start):len(o.Start)], "--listen", "127.0.0.1:0", "--until-eof",
		"--keys", strconv.Itoa(o.Keys), "--max-value", strconv.Itoa(maxValue))
	cmd := exec.Command(o.Start[0], args...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return "", nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	stop = func() error { // closing its input ends it
		in.Close()
		late := time.AfterFunc(startTimeout, func() { cmd.Process.Kill() })
		defer late.Stop()
		return cmd.Wait()
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	kill := context.AfterFunc(ctx, func() { cmd.Process.Kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if !kill() { // the context has ended
		stop()
		return "", nil, ctx.Err()
	}
	at, ok := strings.CutPrefix(strings.TrimSpace(line), ready)
	if err != nil || !ok {
		return "", nil, errors.Join(fmt.Errorf("the server did not start: it said %q", line), stop())
	}
	return at, stop, nil
}
