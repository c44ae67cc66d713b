package launch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLinksAreNotFollowed: a user who can write to the directory of a socket could otherwise make
// root's daemon write to any file, by a link in place of one of the daemon's files.
func TestLinksAreNotFollowed(t *testing.T) {
	const secret = "precious\n"
	for _, kind := range []string{"symbolic", "hard", "pipe", "directory"} {
		t.Run(kind, func(t *testing.T) {
			p := testPlace(t)
			victim := filepath.Join(filepath.Dir(p.Socket), "victim")
			if err := os.WriteFile(victim, []byte(secret), 0o600); err != nil {
				t.Fatal(err)
			}
			place := func(path string) {
				t.Helper()
				var err error
				switch kind {
				case "symbolic":
					err = os.Symlink(victim, path)
				case "hard":
					err = os.Link(victim, path)
				case "pipe":
					err = unix.Mkfifo(path, 0o600)
				case "directory":
					err = os.Mkdir(path, 0o700)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			place(p.pid())
			if c, err := p.Claim(false); err == nil {
				c.Release()
				t.Error("claimed through it")
			} else if !strings.Contains(err.Error(), p.pid()) || !strings.Contains(err.Error(), "--socket") {
				t.Errorf("%v, want which file, and what to do", err)
			}
			if p.Served() || p.Ephemeral() {
				t.Error("what stands there was read")
			}
			place(p.lease())
			if _, err := lockFile(p.lease(), unix.LOCK_SH); !errors.Is(err, errLink) {
				t.Errorf("lease: %v", err)
			}
			place(p.Log())
			if err := Spawn(context.Background(), []string{"/bin/true"}, p.Log()); err == nil || !strings.Contains(err.Error(), "log") {
				t.Errorf("log: %v", err)
			}
			if text, err := os.ReadFile(victim); string(text) != secret {
				t.Errorf("the file behind the link is now %q, %v", text, err)
			}
		})
	}
}

// TestGoneDaemonOfAnother: if another user's daemon has ended, the error says so and names the user
// who can start it.
func TestGoneDaemonOfAnother(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("root makes the directory, another user asks")
	}
	p := testPlace(t)
	if err := os.Chmod(filepath.Dir(p.Socket), 0o755); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t}
	l := w.launcher(p)
	asUser(t, 65534, func() {
		_, _, err := l.Ensure(testContext(t))
		if err == nil || !strings.Contains(err.Error(), "no daemon runs at "+p.Socket) ||
			!strings.Contains(err.Error(), "have root (uid 0) run vrdma daemon") || errors.Is(err, syscall.EACCES) {
			t.Errorf("%v, want that there is no daemon, and who should start it", err)
		}
	})
}

// TestReplacedLibraries: an upgraded daemon writes the shared objects again, into a directory that another user may have changed.
func TestReplacedLibraries(t *testing.T) {
	p := testPlace(t)
	dir := filepath.Dir(p.Socket)
	source := filepath.Join(dir, "source")
	if err := os.Mkdir(source, 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(path, text string) string {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, of := range []string{p.Library(), p.Sockets()} {
		write(filepath.Join(source, filepath.Base(of)), "new")
	}
	t.Setenv("VRDMA_LIB", filepath.Join(source, filepath.Base(p.Library())))
	if err := InstallLibraries(p, 0o755); err != nil {
		t.Fatal(err)
	}
	victim := write(filepath.Join(dir, "victim"), "precious")
	for _, name := range []string{p.Library() + ".part", p.Sockets() + ".part"} {
		if err := os.Symlink(victim, name); err != nil {
			t.Fatal(err)
		}
	}
	if err := ReplaceLibraries(p); err != nil {
		t.Errorf("with links in it: %v", err)
	}
	if text, err := os.ReadFile(p.Library()); string(text) != "new" {
		t.Errorf("the library is %q, %v", text, err)
	}
	// The directory itself is a link to another one.
	other := filepath.Join(dir, "other")
	if err := errors.Join(os.Rename(p.Dir(), other), os.Symlink(other, p.Dir())); err != nil {
		t.Fatal(err)
	}
	write(filepath.Join(other, filepath.Base(p.Library())), "old")
	if err := ReplaceLibraries(p); err == nil {
		t.Error("a link in place of the directory was followed")
	}
	if text, _ := os.ReadFile(filepath.Join(other, filepath.Base(p.Library()))); string(text) != "old" {
		t.Errorf("the library in another directory is %q", text)
	}
	if text, err := os.ReadFile(victim); string(text) != "precious" {
		t.Errorf("the file behind the link is now %q, %v", text, err)
	}
}
