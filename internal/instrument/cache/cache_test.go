package cache

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestFill(t *testing.T) {
	place := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", place)
	want := filepath.Join(place, "vrdma", "thing")
	for _, c := range []struct {
		name string
		err  error
	}{{"fails", errors.New("out of luck")}, {"made", nil}, {"made before", nil}} {
		t.Run(c.name, func(t *testing.T) {
			called := false
			dir, err := Fill("thing", func(dir string) error {
				called = true
				if info, err := os.Stat(dir); err != nil || !info.IsDir() || dir != want {
					t.Errorf("called with %s (%v), want the directory %s", dir, err, want)
				}
				return c.err
			})
			if !called || dir != want || !errors.Is(err, c.err) {
				t.Errorf("called: %v; got %s, %v, want %s, %v", called, dir, err, want, c.err)
			}
		})
	}
}

// Only one of many goroutines is in the directory at a time, and only the first makes its content.
func TestFillAlone(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	made := 0 // the lock guards it
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			_, err := Fill("thing", func(dir string) error {
				// It fails if another goroutine is between these two calls.
				if err := os.Mkdir(filepath.Join(dir, "busy"), 0o755); err != nil {
					return err
				}
				defer os.Remove(filepath.Join(dir, "busy"))
				stamp := filepath.Join(dir, "stamp")
				if _, err := os.Stat(stamp); err == nil {
					return nil
				}
				made++
				return os.WriteFile(stamp, nil, 0o644)
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if made != 1 {
		t.Errorf("made %d times, want once", made)
	}
}

func TestNoPlace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, home, cache, want string }{
		{"no home", "", "", "no place for thing in the user's cache"},
		{"not a directory", "", file, "the cache for thing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("HOME", c.home)
			t.Setenv("XDG_CACHE_HOME", c.cache)
			_, err := Fill("thing", func(string) error {
				t.Error("was called")
				return nil
			})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
