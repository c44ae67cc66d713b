package filecopy

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestKey: a client without the key gets nothing, and a client rejects a server without it.
func TestKey(t *testing.T) {
	for name, open := range places(t) {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, open, &Server{Key: NewKey()})
			write(t, filepath.Join(l.dir, "a"), content(10))
			back := t.TempDir()
			c := l.client()
			ok(t, c.Get(testContext(t), []string{"a"}, back, true))
			same(t, filepath.Join(back, "a"), content(10))
			for _, wrong := range []struct {
				key  []byte
				want string
			}{{nil, "wants a key"}, {[]byte("0123456789abcdef"), "key is wrong"}} {
				c := l.client()
				c.Key = wrong.key
				refused(t, c.Get(testContext(t), []string{"a"}, t.TempDir(), true), wrong.want)
			}
			public := newLab(t, open, &Server{})
			c = public.client()
			c.Key = NewKey()
			refused(t, c.Get(testContext(t), []string{"a"}, t.TempDir(), true), "asks for no key")
		})
	}
}

// TestReadKey: a key that others can read or guess is rejected.
func TestReadKey(t *testing.T) {
	path := write(t, filepath.Join(t.TempDir(), "key"), []byte(" 0123456789abcdef\n"))
	_, err := ReadKey(path)
	refused(t, err, "chmod 600")
	ok(t, os.Chmod(path, 0o600))
	if key, err := ReadKey(path); err != nil || string(key) != "0123456789abcdef" {
		t.Errorf("got %q, %v", key, err)
	}
	ok(t, os.WriteFile(path, []byte("short\n"), 0o600))
	_, err = ReadKey(path)
	refused(t, err, "at least 16")
	_, err = ReadKey(path + "x")
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

// TestPermission: a server is read-only and does not overwrite, unless its options say so.
func TestPermission(t *testing.T) {
	over(t, func(t *testing.T, l *lab) {
		path := write(t, filepath.Join(t.TempDir(), "a"), content(1000))
		reader := newLabAt(t, l.dir, l.open, &Server{Overwrite: true})
		refused(t, reader.client().Put(testContext(t), []string{path}, "", true), "without --write")
		keeper := newLabAt(t, l.dir, l.open, &Server{Write: true})
		ok(t, keeper.client().Put(testContext(t), []string{path}, "", true))
		write(t, path, content(2000))
		if err := keeper.client().Put(testContext(t), []string{path}, "", true); !errors.Is(err, ErrSome) {
			t.Errorf("overwritten: %v", err)
		}
		c := keeper.client()
		c.Overwrite = true
		refused(t, c.Put(testContext(t), []string{path}, "", true), "without --overwrite")
		same(t, filepath.Join(l.dir, "a"), content(1000))
		c = l.client()
		c.Overwrite = true
		ok(t, c.Put(testContext(t), []string{path}, "", true))
		same(t, filepath.Join(l.dir, "a"), content(2000))
		tidy(t, l.dir, "a")
		// A download does not overwrite either. An equal file counts as copied.
		ok(t, l.client().Get(testContext(t), []string{"a"}, path, false))
		write(t, path, content(3000)[:2000])
		if err := l.client().Get(testContext(t), []string{"a"}, path, false); !errors.Is(err, ErrSome) {
			t.Errorf("overwritten: %v", err)
		}
	})
}

// TestOutside: no path and no symbolic link leads out of the served directory.
func TestOutside(t *testing.T) {
	over(t, func(t *testing.T, l *lab) {
		outside := t.TempDir()
		write(t, filepath.Join(outside, "secret"), content(10))
		ok(t, os.Symlink(outside, filepath.Join(l.dir, "out")))
		ok(t, os.Symlink(filepath.Join(outside, "secret"), filepath.Join(l.dir, "file")))
		ok(t, os.Symlink("../"+filepath.Base(outside), filepath.Join(l.dir, "up")))
		ok(t, os.Mkdir(filepath.Join(l.dir, "in"), 0o755))
		ok(t, os.Symlink("in", filepath.Join(l.dir, "inside")))
		path := write(t, filepath.Join(t.TempDir(), "new"), content(20))
		for _, p := range []string{"../secret", "/../../secret", filepath.Join(outside, "secret"), "out/secret", "file", "up/secret", "in/../../secret"} {
			var said string
			back := t.TempDir()
			c := l.client()
			c.Report = func(p string, err error) { said += p + ": " + err.Error() }
			if err := c.Get(testContext(t), []string{p}, back, true); !errors.Is(err, ErrSome) || !strings.Contains(said, "leads out") && !strings.Contains(said, "no such file") {
				t.Errorf("%s was given: %v, %q", p, err, said)
			}
			tidy(t, back)
		}
		for _, p := range []string{"..", "out", "up", "../x", "out/x", filepath.Join("up", "x")} {
			if err := l.client().Put(testContext(t), []string{path}, p, false); err == nil {
				t.Errorf("%s was taken", p)
			}
		}
		tidy(t, outside, "secret")
		// A link that stays inside is treated as a directory.
		ok(t, l.client().Put(testContext(t), []string{path}, "inside", false))
		same(t, filepath.Join(l.dir, "in", "new"), content(20))
		// A link in the target's place is not followed, but rejected or replaced.
		ok(t, os.Symlink(filepath.Join(outside, "made"), filepath.Join(l.dir, "new")))
		c := l.client()
		c.Overwrite = true
		ok(t, c.Put(testContext(t), []string{path}, "", true))
		tidy(t, outside, "secret")
	})
}

// TestDirectoryThere: an existing directory keeps its attributes unless it may be overwritten.
func TestDirectoryThere(t *testing.T) {
	over(t, func(t *testing.T, l *lab) {
		from, back := filepath.Join(t.TempDir(), "tree"), t.TempDir()
		old := time.Unix(1e9, 0)
		for _, d := range []string{filepath.Join(from, "d"), filepath.Join(l.dir, "tree"), filepath.Join(back, "tree")} {
			ok(t, os.MkdirAll(d, 0o755))
		}
		for _, d := range []string{filepath.Join(from, "d"), from} {
			ok(t, os.Chmod(d, 0o775))
			ok(t, os.Chtimes(d, old, old))
		}
		for _, overwrite := range []bool{false, true} {
			c := l.client()
			c.Recursive, c.Preserve, c.Overwrite = true, true, overwrite
			ok(t, c.Put(testContext(t), []string{from}, "", true))
			ok(t, c.Get(testContext(t), []string{"tree"}, back, true))
			for _, root := range []string{l.dir, back} {
				for _, d := range []string{"tree", "tree/d"} {
					info, err := os.Stat(filepath.Join(root, d))
					ok(t, err)
					want := overwrite || d == "tree/d" // that was made
					if got := info.Mode().Perm() == 0o775 && info.ModTime().Equal(old); got != want {
						t.Errorf("overwrite %v: %s/%s is %v of %v", overwrite, root, d, info.Mode(), info.ModTime())
					}
				}
			}
		}
	})
}

// TestLinks: a symbolic link that leads out of the copied tree is left out.
func TestLinks(t *testing.T) {
	over(t, func(t *testing.T, l *lab) {
		from := filepath.Join(t.TempDir(), "tree")
		write(t, filepath.Join(from, "d", "f"), content(5))
		for name, to := range map[string]string{
			"abs": "/etc", "up": "../..", "up2": "../../x", "good": "d/f", "self": ".",
			"d/back": "./..", "over": "d/back/../../x", "under": "d/..",
		} {
			ok(t, os.Symlink(to, filepath.Join(from, name)))
		}
		c := l.client()
		c.Recursive = true
		if err := c.Put(testContext(t), []string{from}, "", true); !errors.Is(err, ErrSome) {
			t.Errorf("got %v", err)
		}
		tidy(t, filepath.Join(l.dir, "tree"), "d", "good", "self")
		tidy(t, filepath.Join(l.dir, "tree", "d"), "back", "f")
	})
}

// TestLinkBelowLink: no link is made below another link, where .. would lead elsewhere.
func TestLinkBelowLink(t *testing.T) {
	files, err := Below(t.TempDir())
	ok(t, err)
	defer files.Close()
	to := &target{dir: files.root}
	for _, p := range []string{"top", "top/x"} {
		_, err := to.mkdir(p, 0o755)
		ok(t, err)
	}
	ok(t, to.symlink("top/x/y", ".."))
	refused(t, to.symlink("top/x/y/l", "../../z"), "not made below another one")
	ok(t, to.symlink("top/x/l", "../z"))
}

// A needy transport lacks resources for its first connections.
type needy struct {
	transport
	errs []error
}

type needyListener struct {
	listener
	errs []error
}

func (n needy) listen(addr string) (listener, error) {
	l, err := n.transport.listen(addr)
	return &needyListener{l, n.errs}, err
}

func (l *needyListener) accept(ctx context.Context) (func(context.Context) (conn, error), error) {
	if len(l.errs) > 0 {
		err := l.errs[0]
		l.errs = l.errs[1:]
		return nil, broken(ctx, os.NewSyscallError("accept", err))
	}
	return l.listener.accept(ctx)
}

// TestExhausted: a server without descriptors or memory reports it and continues.
func TestExhausted(t *testing.T) {
	errs := []error{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM}
	l := newLab(t, func(context.Context) (Transport, error) { return Transport{needy{TCP().transport, errs}}, nil }, &Server{})
	write(t, filepath.Join(l.dir, "a"), content(10))
	ok(t, l.client().Get(testContext(t), []string{"a"}, t.TempDir(), true))
	for _, err := range errs {
		if !strings.Contains(l.logged(), "not taken: the connection broke: accept: "+err.Error()) {
			t.Errorf("the log lacks %v:\n%s", err, l.logged())
		}
	}
	p := Transport{needy{TCP().transport, []error{unix.EINVAL}}}
	refused(t, (&Server{Files: l.v.Files}).Serve(testContext(t), p, "127.0.0.1:0", func(string) {}), "invalid argument")
}
