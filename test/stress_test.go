package test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/harness"
)

// No byte of a program is lost or misplaced, whatever it does with registered memory, also with fewer rights. A failure
// prints the seed and the steps: testdata/stress.c.
func TestStress(t *testing.T) {
	stress(t, harness.Device(t), "normal", "nouffd", "noptrace", "oldmaps")
}

// The same for an unprivileged user: a system call that writes to a page during its replacement fails for a moment and
// is repeated.
func TestStressUnprivileged(t *testing.T) {
	d := harness.Start(t, harness.Options{User: harness.Nobody()})
	d.NoLeaks(t)
	stress(t, d, "normal", "nouffd")
}

func stress(t *testing.T, d *harness.Daemon, modes ...string) {
	bin := harness.Compile(t, "stress")
	first, seeds := uint64(1), 1
	if harness.All() { // other seeds each time
		first, seeds = uint64(time.Now().UnixNano())%1_000_000, 5
	}
	for _, mode := range modes {
		for seed := first; seed < first+uint64(seeds); seed++ {
			t.Run(mode+"/"+strconv.FormatUint(seed, 10), func(t *testing.T) {
				out := d.Run(t, 4*minute, bin, mode, harness.Pick("800", "8000"), strconv.FormatUint(seed, 10))
				if !strings.Contains(out, "ok stress") {
					t.Errorf("got no \"ok\":\n%s", out)
				}
			})
		}
	}
}
