package filecopy

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A frail transport has connections that break after some chunks, a given number of times.
type frail struct {
	transport
	times *atomic.Int32
	after int
}

func (f frail) dial(ctx context.Context, addr string) (conn, error) {
	c, err := f.transport.dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return &frailConn{conn: c, f: f}, nil
}

type frailConn struct {
	conn
	f frail
	n int
}

// wear breaks the connection after its last chunk.
func (c *frailConn) wear() {
	if c.n++; c.n == c.f.after && c.f.times.Add(-1) >= 0 {
		c.shut()
	}
}

func (c *frailConn) post(s *slot, n int) error {
	c.wear()
	return c.conn.post(s, n)
}

func (c *frailConn) release(s *slot) error {
	c.wear()
	return c.conn.release(s)
}

// TestBroken: a copy whose connection breaks repeatedly is completed, and received data is not sent again.
func TestBroken(t *testing.T) {
	over(t, func(t *testing.T, l *lab) {
		const size = 24<<20 + 77
		from := t.TempDir()
		paths := []string{write(t, filepath.Join(from, "big"), content(size)), write(t, filepath.Join(from, "small"), content(1000))}
		back := t.TempDir()
		for _, put := range []bool{true, false} {
			c := l.client()
			c.Streams, c.Slots = 2, 2
			open := c.Open
			var times atomic.Int32
			times.Store(3)
			tcp := false
			c.Open = func(ctx context.Context) (Transport, error) {
				p, err := open(ctx)
				tcp = p.Name() == "TCP"
				return Transport{frail{p.transport, &times, 3}}, err
			}
			if put {
				ok(t, c.Put(testContext(t), paths, "", true))
			} else {
				ok(t, c.Get(testContext(t), []string{"big", "small"}, back, true))
			}
			if times.Load() == 3 {
				t.Error("the connection never broke")
			}
			// Each break loses the data in flight. With TCP that includes the kernel's buffers, but no attempt sends a
			// block twice.
			most := uint64(size + 1000 + 3*2*(2+1)*maxChunk)
			if tcp {
				most = 4 * (size + 1000)
			}
			if m := c.Progress.Moved(); m < size || m > most {
				t.Errorf("%d bytes were moved for %d, want at most %d", m, size, most)
			}
		}
		for _, dir := range []string{l.dir, back} {
			same(t, filepath.Join(dir, "big"), content(size))
			same(t, filepath.Join(dir, "small"), content(1000))
			tidy(t, dir, "big", "small")
		}
	})
}

// TestResume: of a partial file only wrong or missing blocks are sent.
func TestResume(t *testing.T) {
	over(t, func(t *testing.T, l *lab) {
		want := content(80*blockSize + 100)
		path := write(t, filepath.Join(t.TempDir(), "f"), want)
		half := bytes.Clone(want[:40*blockSize+50])
		half[3*blockSize+1]++ // the source has changed
		for name, had := range map[string][]byte{
			"half": half, "all": want, "longer": append(bytes.Clone(want), half...), "other": content(100 * blockSize), "empty": nil,
		} {
			write(t, filepath.Join(l.dir, partialName("f")), had)
			c := l.client()
			c.Overwrite = true
			ok(t, c.Put(testContext(t), []string{path}, "", true))
			same(t, filepath.Join(l.dir, "f"), want)
			tidy(t, l.dir, "f")
			most := map[string]int{"half": 50 * blockSize, "all": 0, "longer": 0}[name]
			if moved := c.Progress.Moved(); name != "other" && name != "empty" && moved > uint64(most) {
				t.Errorf("%s: %d bytes were moved, want at most %d", name, moved, most)
			}
		}
	})
}

// TestInterrupted: an interrupted client leaves a partial file with its suffix.
func TestInterrupted(t *testing.T) {
	over(t, func(t *testing.T, l *lab) {
		write(t, filepath.Join(l.dir, "f"), content(16<<20))
		back := t.TempDir()
		ctx, cancel := context.WithCancel(testContext(t))
		c := l.client()
		c.Streams = 1 // no other stream sends at the same time
		open := c.Open
		c.Open = func(ctx context.Context) (Transport, error) {
			p, err := open(ctx)
			return Transport{stopper{p.transport, cancel}}, err
		}
		if err := c.Get(ctx, []string{"f"}, back, true); !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v", err)
		}
		tidy(t, back, ".f.vrdma-partial")
		ok(t, l.client().Get(testContext(t), []string{"f"}, back, true))
		same(t, filepath.Join(back, "f"), content(16<<20))
		tidy(t, back, "f")
	})
}

// A stopper interrupts the client after some chunks.
type stopper struct {
	transport
	stop func()
}

func (s stopper) dial(ctx context.Context, addr string) (conn, error) {
	c, err := s.transport.dial(ctx, addr)
	return &stopConn{conn: c, stop: s.stop}, err
}

type stopConn struct {
	conn
	stop func()
	n    int
}

func (c *stopConn) release(s *slot) error {
	if c.n++; c.n == 3 {
		c.stop()
		return context.Canceled
	}
	return c.conn.release(s)
}

// TestSparse: holes stay holes, also those smaller than a block, and in a resumed file.
func TestSparse(t *testing.T) {
	over(t, func(t *testing.T, l *lab) {
		path := filepath.Join(t.TempDir(), "f")
		f, err := os.Create(path)
		ok(t, err)
		ok(t, f.Truncate(96<<20))
		for _, at := range []int64{0, 5 << 20, 5<<20 + 64<<10, 60<<20 + 4096, 96<<20 - 10} {
			_, err := f.WriteAt([]byte("0123456789"), at)
			ok(t, err)
		}
		ok(t, f.Close())
		want, err := os.ReadFile(path)
		ok(t, err)
		for _, had := range [][]byte{nil, content(3 << 20)} {
			if had != nil {
				write(t, filepath.Join(l.dir, partialName("f")), had)
			}
			c := l.client()
			c.Overwrite = true
			ok(t, c.Put(testContext(t), []string{path}, "", true))
			same(t, filepath.Join(l.dir, "f"), want)
			if a, b := disk(t, path), disk(t, filepath.Join(l.dir, "f")); b > a+64<<10 { // with a margin for the file system
				t.Errorf("the copy takes %d bytes of the disk, the file %d", b, a)
			}
			if c.Progress.Moved() > 6<<20 {
				t.Errorf("%d bytes were moved", c.Progress.Moved())
			}
		}
	})
}

// TestGivenUp: closing a file while a stream writes to it makes no hole in another file with the same descriptor.
func TestGivenUp(t *testing.T) {
	dir := t.TempDir()
	full, zero := content(blockSize), make([]byte, blockSize)
	victim := write(t, filepath.Join(dir, "victim"), full)
	for range 300 {
		f, err := os.Create(filepath.Join(dir, "partial"))
		ok(t, err)
		p := &partial{f: f, had: blockSize}
		begun, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			ok := p.write(zero, 0, true) == nil
			close(begun)
			for ok {
				ok = p.write(zero, 0, true) == nil
			}
		}()
		<-begun
		ok(t, f.Close())
		v, err := os.OpenFile(victim, os.O_RDWR, 0)
		ok(t, err)
		<-ended
		ok(t, v.Close())
	}
	same(t, victim, full)
}

// disk returns how many bytes of the disk a file takes.
func disk(t testing.TB, path string) int64 {
	t.Helper()
	var st unix.Stat_t
	ok(t, unix.Stat(path, &st))
	return st.Blocks * 512
}

// TestDirectoriesAgain: directories that a broken attempt made get their attributes, and existing ones keep theirs.
func TestDirectoriesAgain(t *testing.T) {
	over(t, func(t *testing.T, l *lab) {
		from := t.TempDir()
		for _, d := range []string{"tree/a", "tree/b"} {
			ok(t, os.MkdirAll(filepath.Join(from, d), 0o755))
			write(t, filepath.Join(from, d, "file"), content(4<<20))
		}
		then := time.Unix(1e9, 0)
		for _, d := range []string{"tree/a", "tree/b", "tree"} {
			ok(t, os.Chmod(filepath.Join(from, d), 0o710))
			ok(t, os.Chtimes(filepath.Join(from, d), then, then))
		}
		back := t.TempDir()
		for _, put := range []bool{true, false} {
			to := back
			c := l.client()
			c.Recursive, c.Preserve, c.Streams, c.Slots = true, true, 1, 2
			open := c.Open
			var times atomic.Int32
			times.Store(2)
			c.Open = func(ctx context.Context) (Transport, error) {
				p, err := open(ctx)
				return Transport{frail{p.transport, &times, 12}}, err
			}
			if put {
				to = l.dir
				ok(t, os.MkdirAll(filepath.Join(to, "tree/b"), 0o750))
				ok(t, c.Put(testContext(t), []string{filepath.Join(from, "tree")}, "", true))
			} else {
				ok(t, os.MkdirAll(filepath.Join(to, "tree/b"), 0o750))
				ok(t, c.Get(testContext(t), []string{"tree"}, to, true))
			}
			if times.Load() == 2 {
				t.Error("the connection never broke")
			}
			info, err := os.Stat(filepath.Join(to, "tree/a"))
			ok(t, err)
			if info.Mode().Perm() != 0o710 || !info.ModTime().Equal(then) {
				t.Errorf("put %v: a directory of the first attempt has %v, %v; want that of the source", put, info.Mode(), info.ModTime())
			}
			info, err = os.Stat(filepath.Join(to, "tree/b"))
			ok(t, err)
			if info.Mode().Perm() != 0o750 {
				t.Errorf("put %v: a directory that was there has %v, want its own mode", put, info.Mode())
			}
		}
	})
}
