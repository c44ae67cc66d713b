package launch

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestAt(t *testing.T) {
	tests := []struct{ name, path, fails string }{
		{"plain", "/run/vrdma/s", ""},
		{"blank", "/run/my dir/s", "LD_PRELOAD"},
		{"colon", "/run/a:b/s", "LD_PRELOAD"},
		{"too long for a socket", "/" + strings.Repeat("x", 120), "shorter"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := At(test.path)
			if (err == nil) != (test.fails == "") || err != nil && !strings.Contains(err.Error(), test.fails) {
				t.Errorf("At(%q): %v, want %q", test.path, err, test.fails)
			}
		})
	}
}

func TestDefault(t *testing.T) {
	uid := os.Getuid()
	short := func(t *testing.T) string {
		dir, err := os.MkdirTemp("", "place")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		return dir
	}
	env := func(dir string) func(string) string {
		return func(name string) string {
			if name != "XDG_RUNTIME_DIR" {
				return ""
			}
			return dir
		}
	}
	check := func(t *testing.T, dir, tmp, want string) {
		t.Helper()
		p, err := Default(env(dir), uid, tmp, "")
		if err != nil {
			t.Fatal(err)
		}
		if got := filepath.Dir(p.Socket); !strings.HasPrefix(got, want) {
			t.Errorf("directory %s, want one in %s", got, want)
		}
		if info, err := os.Stat(filepath.Dir(p.Socket)); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("directory: %v, %v, want mode 0700", info, err)
		}
	}
	t.Run("runtime directory", func(t *testing.T) {
		run, tmp := short(t), short(t)
		check(t, run, tmp, run)
	})
	t.Run("none", func(t *testing.T) {
		tmp := short(t)
		check(t, "", tmp, tmp)
	})
	t.Run("not there", func(t *testing.T) {
		tmp := short(t)
		check(t, "/nonexistent/run", tmp, tmp)
	})
	t.Run("relative", func(t *testing.T) {
		tmp := short(t)
		check(t, "run", tmp, tmp)
	})
	t.Run("writable by everybody", func(t *testing.T) {
		run, tmp := short(t), short(t)
		if err := os.Chmod(run, 0o777); err != nil {
			t.Fatal(err)
		}
		check(t, run, tmp, tmp)
	})
	t.Run("squatted", func(t *testing.T) {
		tmp := short(t)
		if _, err := Default(env(""), uid+1, tmp, ""); err == nil || !strings.Contains(err.Error(), "belongs to another user") {
			t.Errorf("Default: %v, want a refusal", err)
		}
	})
	t.Run("symlink", func(t *testing.T) {
		tmp := short(t)
		link, err := Default(env(""), uid, tmp, "")
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Dir(link.Socket)
		if err := os.Rename(dir, dir+"x"); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(dir+"x", dir); err != nil {
			t.Fatal(err)
		}
		if _, err := Default(env(""), uid, tmp, ""); err == nil || !strings.Contains(err.Error(), "should be a directory") {
			t.Errorf("Default through a symlink: %v, want a refusal", err)
		}
	})
}

// Root's daemon has its own place, and root finds it there.
func TestSystemPlace(t *testing.T) {
	nothing := func(string) string { return "" }
	tmp, system := t.TempDir(), filepath.Join(t.TempDir(), "vrdma", "vrdma.sock")
	uid := os.Getuid()
	if uid != 0 {
		t.Skip("it is for root")
	}
	if p, err := Default(nothing, uid, tmp, system); err != nil || !strings.HasPrefix(p.Socket, tmp) {
		t.Errorf("while no daemon is there: %v, %v, want a place in %s", p, err, tmp)
	}
	if p, err := ForDaemon(nothing, uid, tmp, system); err != nil || p.Socket != system {
		t.Errorf("the daemon's: %v, %v, want %s", p, err, system)
	}
	l, err := net.Listen("unix", system)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if p, err := Default(nothing, uid, tmp, system); err != nil || p.Socket != system {
		t.Errorf("while a daemon is there: %v, %v, want %s", p, err, system)
	}
	if p, err := ForDaemon(nothing, 1000, "/nonexistent", system); err == nil {
		t.Errorf("another user's: %v", p)
	}
	run := t.TempDir()
	if p, err := ForDaemon(func(string) string { return run }, uid, tmp, system); err != nil || !strings.HasPrefix(p.Socket, run) {
		t.Errorf("with XDG_RUNTIME_DIR: %v, %v, want a place in %s", p, err, run)
	}
}

func TestEnvironment(t *testing.T) {
	p := Place{Socket: "/r/s"}
	tests := []struct {
		name, preload, want string
	}{
		{"none", "", "/r/s.d/libvrdma.so"},
		{"another", "/lib/x.so", "/r/s.d/libvrdma.so:/lib/x.so"},
		{"blanks", "/lib/x.so y.so", "/r/s.d/libvrdma.so:/lib/x.so:y.so"},
		{"ourselves", "/old.d/libvrdma.so:/lib/x.so", "/r/s.d/libvrdma.so:/lib/x.so"},
		{"rsockets", "/lib/x.so:librspreload.so", "librspreload.so:/r/s.d/libvrdma.so:/lib/x.so"},
		{"sockets", "/r/s.d/libvrdma-sockets.so:librspreload.so:/lib/x.so", "/r/s.d/libvrdma-sockets.so:librspreload.so:/r/s.d/libvrdma.so:/lib/x.so"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			in := []string{"HOME=/h", "VRDMA_SOCKET=/old", "SYSFS_PATH=/old.d/sys"}
			if test.preload != "" {
				in = append(in, "LD_PRELOAD="+test.preload)
			}
			got := p.Environment(in, "")
			want := []string{"HOME=/h", "VRDMA_SOCKET=/r/s", "SYSFS_PATH=/r/s.d/sys", "LD_PRELOAD=" + test.want}
			if !slices.Equal(got, want) {
				t.Errorf("got %q\nwant %q", got, want)
			}
		})
	}
	if got := p.Environment(nil, "t1"); !slices.Contains(got, "VRDMA_TRACE=t1") {
		t.Errorf("no label in %q", got)
	}
}
