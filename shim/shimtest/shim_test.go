package shimtest

import (
	"testing"
	"time"
)

// TestPrograms runs every program of testdata; each checks itself.
func TestPrograms(t *testing.T) {
	for _, name := range []string{"door", "interrupt", "register", "writers", "fork", "death"} {
		t.Run(name, func(t *testing.T) {
			f := startFake(t)
			out := mustRun(t, f, library(t), program(t, name))
			if out != "" && name != "death" {
				t.Errorf("printed:\n%s", out)
			}
			deadline := time.Now().Add(10 * time.Second)
			for f.sessions() != 0 {
				if time.Now().After(deadline) {
					t.Fatalf("%d connections are open after the program ended, want 0", f.sessions())
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
}
