package launch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The test binary is also the daemon: detached, then as the variable says.
const playVariable = "LAUNCH_TEST_PLAY"

func TestMain(m *testing.M) {
	play := os.Getenv(playVariable)
	if play == "" {
		os.Exit(m.Run())
	}
	if len(os.Args) > 1 && os.Args[1] == "detached" {
		fmt.Println("daemon", os.Getpid(), "of", os.Getppid())
		switch play {
		case "ready":
			Ready(nil)
		case "fail":
			Ready(errors.New("no\nroom"))
		case "die":
			fmt.Println("last words")
		}
		os.Exit(0)
	}
	if err := Detach([]string{"detached"}); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

func TestSpawn(t *testing.T) {
	tests := []struct{ play, fails string }{
		{"ready", ""},
		{"fail", "did not start: no room"},
		{"die", "last words"},
	}
	for _, test := range tests {
		t.Run(test.play, func(t *testing.T) {
			t.Setenv(playVariable, test.play)
			log := filepath.Join(t.TempDir(), "log")
			err := Spawn(testContext(t), []string{os.Args[0]}, log)
			if (err == nil) != (test.fails == "") || err != nil && !strings.Contains(err.Error(), test.fails) {
				t.Fatalf("Spawn: %v, want %q", err, test.fails)
			}
			text, err := os.ReadFile(log)
			if err != nil {
				t.Fatal(err)
			}
			var pid, parent int
			if _, err := fmt.Sscanf(string(text), "daemon %d of %d", &pid, &parent); err != nil {
				t.Fatalf("log %q: %v", text, err)
			}
			if parent == os.Getpid() {
				t.Error("the daemon is our own child")
			}
			awaitEnd(t, pid)
		})
	}
}

// awaitEnd waits for the end of pid, which is not a child of this process.
func awaitEnd(t *testing.T, pid int) {
	t.Helper()
	for range 12000 { // a minute
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Errorf("process %d is still there", pid)
}
