package test

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/harness"
)

// shares is how many of a thousand races each case of testdata/wakeups.c runs. Cases that create and end queues,
// processes and connections are slower.
var shares = map[string]int{
	"all": 250, "solicited": 150, "mixed": 150, "extended": 150, "threads": 150, "resize": 80,
	"destroyed": 15, "errors": 15, "forks": 20, "stopped": 15, "killed": 5,
}

// wakeups runs every case of testdata/wakeups.c, with n races in all.
func wakeups(t *testing.T, d *harness.Daemon, races int) {
	bin := harness.Compile(t, "wakeups")
	list, err := exec.Command(bin, "list").Output()
	if err != nil {
		t.Fatalf("%s list: %v", bin, err)
	}
	seed := uint64(1)
	if harness.All() { // another each time
		seed = uint64(time.Now().UnixNano()) % 1_000_000
	}
	total := 0
	for _, name := range strings.Fields(string(list)) {
		t.Run(name, func(t *testing.T) {
			part := max(races*shares[name]/1000, 20)
			out := d.Run(t, harness.Pick(3*minute, 60*minute), bin, name, strconv.Itoa(part), strconv.FormatUint(seed, 10))
			ran := regexp.MustCompile(`(?m)^(\d+) races, `).FindStringSubmatch(out)
			if ran == nil || !strings.Contains(out, "ok "+name) {
				t.Fatalf("want \"N races\" and \"ok %s\", got:\n%s", name, out)
			}
			n, _ := strconv.Atoi(ran[1])
			if n < part {
				t.Errorf("%d races, want %d", n, part)
			}
			total += n
			t.Log(strings.ReplaceAll(strings.TrimSpace(out), "\n", "; "))
		})
	}
	t.Logf("%d races", total)
}

// No wake-up is lost when programs arm, poll and sleep while completions arrive. VRDMA_WAKEUPS is the number of races.
func TestWakeups(t *testing.T) {
	races := harness.Pick(100_000, 1_000_000)
	if text := os.Getenv("VRDMA_WAKEUPS"); text != "" {
		if _, err := fmt.Sscan(text, &races); err != nil {
			t.Fatalf("VRDMA_WAKEUPS=%s: want a number", text)
		}
	}
	wakeups(t, harness.Device(t), races)
}

// The same with a daemon that has the race detector and exits at the first race.
func TestWakeupsWatched(t *testing.T) {
	d := harness.Start(t, harness.Options{Race: true})
	d.NoLeaks(t)
	wakeups(t, d, harness.Pick(2_000, 20_000))
}
