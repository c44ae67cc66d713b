package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/filecopy"
)

// copyFlags are the flags of cp.
type copyFlags struct {
	o *options

	recursive, preserve, overwrite bool
	transport                      string
	streams, chunks                int
	keyFile                        string
	quiet, verbose                 bool
	patience                       time.Duration

	serve         string
	listen        string
	write, public bool

	rsh, remoteVrdma string
	remote           bool
}

func cpCommand(o *options) *cobra.Command {
	f := &copyFlags{o: o}
	c := &cobra.Command{
		Use:   "cp [flags] FILE... HOST:DIR | HOST:FILE... DIR | --serve DIR",
		Short: "copy files between hosts over RDMA",
		Long: `Copies files over RDMA. HOST:PATH starts the other side through ssh, which authenticates the
user. vrdma must be installed there, and each host needs a daemon that the other reaches
(vrdma daemon --addr). rdma://HOST[:PORT]/PATH is a running server: vrdma cp --serve DIR.

Several chunks are in flight on each of four connections, and every block has a checksum. A
file gets its name when it is complete; until then it is .NAME.vrdma-partial, and the same
command continues an interrupted copy. --overwrite is needed to overwrite files. The data is
not encrypted.`,
		Example: `  vrdma cp big.iso db1:/var/tmp/
  vrdma cp -r -p db1:/etc/app .
  vrdma cp --serve /srv/pub --public &  vrdma cp rdma://127.0.0.1/a.iso .`,
		RunE: func(_ *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			if err := f.check(); err != nil {
				return err
			}
			switch {
			case f.remote:
				return f.answer(ctx)
			case f.serve != "":
				if len(args) > 0 {
					return usage("--serve takes no files: clients name them")
				}
				return f.server(ctx)
			}
			return f.copy(ctx, args)
		},
	}
	l := c.Flags()
	l.BoolVarP(&f.recursive, "recursive", "r", false, "copy directories with their content")
	l.BoolVarP(&f.preserve, "preserve", "p", false, "keep permissions and times")
	l.BoolVar(&f.overwrite, "overwrite", false, "overwrite files; with --serve: allow clients to overwrite")
	l.StringVar(&f.transport, "transport", "rdma", "rdma, or tcp for comparison")
	l.IntVar(&f.streams, "streams", 4, "number of data connections, 1 to 16")
	l.IntVar(&f.chunks, "chunks", 0, "chunks in flight on each, 1 to 32 (default 4, to another machine 8, a server's limit); 1: the published protocol, which waits for each 10 MiB, with one file and no key")
	l.StringVar(&f.keyFile, "key-file", "", "the key that client and --serve share; it is never sent")
	l.BoolVarP(&f.quiet, "quiet", "q", false, "show no progress")
	l.BoolVarP(&f.verbose, "verbose", "v", false, "print amount and rate at the end")
	l.DurationVar(&f.patience, "patience", time.Minute, "how long to retry after the connection broke")
	l.StringVar(&f.serve, "serve", "", "serve the files below this directory")
	l.StringVar(&f.listen, "listen", ":"+filecopy.DefaultPort, "with --serve: listen address, [ADDRESS]:PORT")
	l.BoolVar(&f.write, "write", false, "with --serve: clients may send files, too")
	l.BoolVar(&f.public, "public", false, "with --serve: allow every client, without a key")
	l.StringVar(&f.rsh, "rsh", "", "the remote shell (default: VRDMA_RSH, else ssh)")
	l.StringVar(&f.remoteVrdma, "remote-vrdma", "vrdma", "path of vrdma at HOST")
	l.BoolVar(&f.remote, "remote", false, "")
	l.MarkHidden("remote")
	return c
}

// check rejects flags that contradict each other.
func (f *copyFlags) check() error {
	switch {
	case f.transport != "rdma" && f.transport != "tcp":
		return usage("--transport %s: choose rdma or tcp", f.transport)
	case f.streams < 1 || f.streams > 16:
		return usage("--streams %d: choose 1 to 16", f.streams)
	case f.chunks < 0 || f.chunks > 32:
		return usage("--chunks %d: choose 1 to 32", f.chunks)
	case f.serve == "" && (f.write || f.public):
		return usage("--write and --public are for --serve")
	}
	return nil
}

// open opens the device, or TCP.
func (f *copyFlags) open(ctx context.Context) (filecopy.Transport, error) {
	if f.transport == "tcp" {
		return filecopy.TCP(), nil
	}
	place, err := f.o.place()
	if err != nil {
		return filecopy.Transport{}, err
	}
	lease, err := ensureDaemon(place)
	if err != nil {
		return filecopy.Transport{}, err
	}
	p, err := filecopy.OpenRDMA(ctx, place.Socket)
	if lease != nil {
		leases = append(leases, lease)
	}
	return p, err
}

// leases keep a daemon that was started for this process running until the process ends.
var leases []*os.File

func (f *copyFlags) key() ([]byte, error) {
	if f.keyFile == "" {
		return nil, nil
	}
	return filecopy.ReadKey(f.keyFile)
}

// server serves a directory until it is interrupted.
func (f *copyFlags) server(ctx context.Context) error {
	key, err := f.key()
	switch {
	case err != nil:
		return usage("%w", err)
	case key == nil && !f.public:
		return usage("--serve: give --key-file FILE, or --public to serve every client that can connect")
	case key != nil && f.public:
		return usage("--public and --key-file: choose one")
	}
	files, err := filecopy.Below(f.serve)
	if err != nil {
		return err
	}
	defer files.Close()
	p, err := f.open(ctx)
	if err != nil {
		return err
	}
	defer p.Close()
	v := &filecopy.Server{Files: files, Key: key, Write: f.write, Overwrite: f.overwrite, Log: say}
	serve := v.Serve
	if f.chunks == 1 {
		if !f.public || !f.write {
			return usage("--chunks 1 is the published protocol, which has no key and only sends files to the server: give --public --write")
		}
		serve = v.ServeOne
	}
	return serve(ctx, p, f.listen, func(addr string) {
		a := filecopy.Announcement{Directory: f.serve, Transport: p.Name(), KeyFile: f.keyFile, Write: f.write, Overwrite: f.overwrite, OneChunk: f.chunks == 1}
		for _, line := range a.Lines(addr, p.Addresses()) {
			say("%s", line)
		}
	})
}

// say prints a line without control characters: names come from the other side.
func say(format string, args ...any) {
	fmt.Fprintln(os.Stderr, strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, fmt.Sprintf("vrdma: "+format, args...)))
}

// answer runs the side that ssh has started.
func (f *copyFlags) answer(ctx context.Context) error {
	p, err := f.open(ctx)
	if err != nil {
		return err
	}
	defer p.Close()
	return filecopy.Answer(ctx, p, os.Stdin, os.Stdout, func(string, ...any) {})
}

// copy copies files.
func (f *copyFlags) copy(ctx context.Context, args []string) error {
	p, err := filecopy.ParsePlan(args)
	if err != nil {
		return usage("%w", err)
	}
	if err := p.Check(); err != nil {
		return err
	}
	c := &filecopy.Client{
		Open: f.open, Recursive: f.recursive, Preserve: f.preserve, Overwrite: f.overwrite, Streams: f.streams, Slots: f.chunks,
		Patience: f.patience, Progress: &filecopy.Progress{},
	}
	var mu sync.Mutex
	stop := func() {}
	c.Notice = func(text string) { mu.Lock(); defer mu.Unlock(); say("%s", text) }
	c.Report = func(path string, err error) {
		mu.Lock()
		defer mu.Unlock()
		if path == "" {
			say("%v", err)
		} else {
			say("%s: %v", path, err)
		}
	}
	if c.Key, err = f.key(); err != nil {
		return usage("%w", err)
	}
	if p.Host.Direct() {
		c.Addrs = []string{net.JoinHostPort(p.Host.Host, p.Host.Port)}
	} else {
		r, err := filecopy.Start(ctx, f.shell(), p.Host.Host, f.there())
		if err != nil {
			return err
		}
		defer r.Close()
		c.Key, c.Addrs = r.Key, r.Addrs
	}
	if isTerminal(os.Stderr) && !f.quiet {
		stop = c.Progress.Show(os.Stderr)
	}
	start := time.Now()
	if f.chunks == 1 {
		err = f.one(ctx, p, c.Progress)
	} else if p.Put {
		err = c.Put(ctx, p.Paths, p.To, p.Into)
	} else {
		err = c.Get(ctx, p.Paths, p.To, p.Into)
	}
	stop()
	if f.verbose {
		took := time.Since(start)
		say("%d files, %s over %s in %.3f s: %s/s", c.Progress.Files(), filecopy.Bytes(float64(c.Progress.Moved())),
			strings.ToUpper(f.transport), took.Seconds(), filecopy.Bytes(float64(c.Progress.Moved())/took.Seconds()))
	}
	if ctx.Err() != nil && err != nil {
		return errors.New("interrupted; run the same command again to continue")
	}
	return err
}

// one copies a file with the published protocol.
func (f *copyFlags) one(ctx context.Context, p filecopy.Plan, progress *filecopy.Progress) error {
	if !p.Put || !p.Host.Direct() || len(p.Paths) != 1 || f.recursive || f.preserve || f.keyFile != "" {
		return usage("--chunks 1 is the published protocol, which sends one file to a server without a key: vrdma cp --chunks 1 FILE rdma://HOST[:PORT]/[NAME]")
	}
	name := strings.Trim(p.To, "/")
	if name == "" || name == "." {
		name = filepath.Base(p.Paths[0])
	}
	at, err := f.open(ctx)
	if err != nil {
		return err
	}
	defer at.Close()
	return filecopy.PutOne(ctx, at, net.JoinHostPort(p.Host.Host, p.Host.Port), p.Paths[0], name, progress)
}

// shell returns the remote shell's command.
func (f *copyFlags) shell() []string {
	for _, s := range []string{f.rsh, os.Getenv("VRDMA_RSH")} {
		if words := strings.Fields(s); len(words) > 0 {
			return words
		}
	}
	return []string{"ssh"}
}

// there returns the command to run on the other host.
func (f *copyFlags) there() []string {
	return []string{f.remoteVrdma, "cp", "--remote", "--transport", f.transport}
}
