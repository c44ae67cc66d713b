package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"vrdma.dev/vrdma/internal/instrument/drivers"
	"vrdma.dev/vrdma/internal/instrument/experiment"
	"vrdma.dev/vrdma/internal/instrument/probe"
	"vrdma.dev/vrdma/internal/instrument/speedtable"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// copySize is the size of the copied file. VRDMA_BENCH_COPY sets another, to try the rows.
func copySize() int64 {
	if n, err := strconv.ParseInt(os.Getenv("VRDMA_BENCH_COPY"), 10, 64); err == nil && n > 0 {
		return n
	}
	return 1e9
}

// A copyLab has the file to copy and the directory of the copies.
type copyLab struct {
	l      *testbed.Lab
	source string
	dir    string // on a tmpfs
	size   int64
	memory backedMemory // keeps memory for the copies backed
}

// newCopyLab makes the file and the directory.
func newCopyLab(l *testbed.Lab) (*copyLab, error) {
	c := &copyLab{l: l, source: filepath.Join(l.Dir, "source"), size: copySize()}
	var st syscall.Statfs_t
	const tmpfs = 0x01021994
	if err := syscall.Statfs(testbed.SharedMemory, &st); err != nil || st.Type != tmpfs || int64(st.Bavail)*st.Bsize < 5*c.size/2 {
		return nil, fmt.Errorf("%s is no tmpfs with %s free: mount one there", testbed.SharedMemory, experiment.Amount(float64(c.size)*2.5, "B"))
	}
	meminfo, err := os.ReadFile("/proc/meminfo")
	if err == nil {
		err = checkMemory(string(meminfo), c.size+5*c.size/2) // the file, and what newBackedMemory takes
	}
	if err != nil {
		return nil, err
	}
	f, err := os.Create(c.source)
	if err == nil {
		_, err = io.CopyN(f, rand.Reader, c.size)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return nil, err
	}
	if c.dir, err = os.MkdirTemp(testbed.SharedMemory, "vrdma-copies"); err != nil {
		return nil, err
	}
	if c.memory, err = newBackedMemory(5 * c.size / 2); err == nil && l.User != nil {
		err = os.Chown(c.dir, int(l.User.Uid), int(l.User.Gid))
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (c *copyLab) close() {
	c.memory.close()
	os.Remove(c.source)
	os.RemoveAll(c.dir)
}

// probe measures how fast f copies the file to a path in the tmpfs.
func (c *copyLab) probe(name string, f func(ctx context.Context, to string) error) probe.Probe {
	return probe.Probe{Name: name, Unit: "B/s", Measure: func(ctx context.Context) (drivers.Reading, error) {
		to := filepath.Join(c.dir, "copy")
		defer os.Remove(to)
		start := time.Now()
		if err := f(ctx, to); err != nil {
			return drivers.Reading{}, err
		}
		took := time.Since(start)
		info, err := os.Stat(to)
		if err != nil || info.Size() != c.size {
			return drivers.Reading{}, fmt.Errorf("%s left no copy of %d bytes: %v", name, c.size, err)
		}
		return drivers.Reading{Value: float64(c.size) / took.Seconds()}, nil
	}}
}

// plain measures cp.
func (c *copyLab) plain() probe.Probe {
	return c.probe("cp", func(ctx context.Context, to string) error {
		_, err := c.l.Run(ctx, "cp", c.source, to)
		return err
	})
}

// over measures vrdma cp to a running server.
func (c *copyLab) over(r testbed.Route, name string, s *copyServer) probe.Probe {
	return c.probe("vrdma cp"+name, func(ctx context.Context, to string) error {
		url := fmt.Sprintf("rdma://%s:%d/%s", r.Server.IP, s.port, filepath.Base(to))
		argv := append([]string{c.l.Vrdma, "cp", "--socket", r.Client.Socket, "--quiet"}, s.flags...)
		_, err := c.l.Run(ctx, r.Client.At(append(argv, c.source, url)...)...)
		return err
	})
}

// socat measures socat over TCP.
func (c *copyLab) socat(r testbed.Route) probe.Probe {
	return c.probe("socat -b 262144", func(ctx context.Context, to string) error {
		port, err := testbed.FreePort()
		if err != nil {
			return err
		}
		const buffer = "262144"
		wait, _, err := c.l.StartServer(ctx, r.Server.ListensTCP(port),
			r.Server.At("socat", "-u", "-b", buffer, fmt.Sprintf("TCP-LISTEN:%d,reuseaddr", port), "CREATE:"+to))
		if err != nil {
			return err
		}
		if _, err := c.l.Run(ctx, r.Client.At("socat", "-u", "-b", buffer, "OPEN:"+c.source+",rdonly", fmt.Sprintf("TCP:%s:%d", r.Server.IP, port))...); err != nil {
			return err
		}
		return wait()
	})
}

// A copyServer is a running vrdma cp --serve.
type copyServer struct {
	port  int
	flags []string // its clients have the same
	stop  func()
}

// serve starts a server on a host.
func (c *copyLab) serve(ctx context.Context, h *testbed.Host, flags ...string) (*copyServer, error) {
	port, err := testbed.FreePort()
	if err != nil {
		return nil, err
	}
	argv := []string{c.l.Vrdma, "cp", "--socket", h.Socket, "--serve", c.dir, "--public", "--write", "--listen", fmt.Sprintf("%s:%d", h.IP, port)}
	s := &copyServer{port: port, flags: flags}
	_, s.stop, err = c.l.StartServer(ctx, h.Listens(port), h.At(append(argv, flags...)...))
	return s, err
}

// copies measures how fast files are copied.
func (t *Table) copies() part { return t.together("copy", t.nearCopies(), t.farCopies()) }

// nearCopies measures copies on one host.
func (t *Table) nearCopies() part {
	return part{
		rows: []speedtable.Row{
			ratioRow("vrdma cp, 1 GB from page cache to tmpfs, one host, against cp", 0.7),
			ratioRow("vrdma cp, 1 GB from page cache to tmpfs, one host, against the published protocol (one chunk of 10 MiB)", 1.5),
		},
		measure: func(ctx context.Context, rows []speedtable.Row) error {
			h, _, err := t.here(ctx)
			if err != nil {
				return err
			}
			c, err := newCopyLab(t.Lab)
			if err != nil {
				return err
			}
			defer c.close()
			ours, err := c.serve(ctx, h)
			if err != nil {
				return err
			}
			defer ours.stop()
			one, err := c.serve(ctx, h, "--chunks", "1")
			if err != nil {
				return err
			}
			defer one.stop()
			probes := []probe.Probe{c.over(h.Loopback(), "", ours), c.plain(), c.over(h.Loopback(), " --chunks 1", one)}
			return t.fill(ctx, t.Rounds, probes, rows, []source{{0, 1}, {0, 2}})
		},
	}
}

// farCopies measures copies between two hosts.
func (t *Table) farCopies() part {
	tcp := ratioRow("between two hosts: vrdma cp, 1 GB from page cache to tmpfs, MTU 9000, against vrdma cp --transport tcp", 1)
	tcp.Aim = 1.2
	return part{
		rows: []speedtable.Row{tcp, {What: "between two hosts: vrdma cp, 1 GB from page cache to tmpfs, MTU 9000, against socat -b 262144", Against: &speedtable.Series{}, Unbounded: true}},
		measure: func(ctx context.Context, rows []speedtable.Row) error {
			c, err := newCopyLab(t.Lab)
			if err != nil {
				return err
			}
			defer c.close()
			w, err := t.Lab.NewHostPair(ctx, 9000)
			if err != nil {
				return err
			}
			defer w.Close()
			r := w.Route()
			ours, err := c.serve(ctx, r.Server)
			if err != nil {
				return err
			}
			defer ours.stop()
			plain, err := c.serve(ctx, r.Server, "--transport", "tcp")
			if err != nil {
				return err
			}
			defer plain.stop()
			probes := []probe.Probe{c.over(r, ", MTU 9000", ours), c.over(r, " --transport tcp, MTU 9000", plain), probe.On(c.socat(r), "MTU 9000")}
			return t.fill(ctx, t.Rounds, probes, rows, []source{{0, 1}, {0, 2}})
		},
	}
}
