package memory

import (
	"math/rand/v2"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// All operations at once, at random, against a checker. The log has the seed.
func TestStress(t *testing.T) {
	d := device(t)
	bin := compile(t, "stress")
	seconds := harness.Pick("4", "120")
	for _, c := range []struct {
		way  way
		kind string
	}{{user, "plain"}, {user, "all"}, {container, "plain"}, {root, "plain"}, {untraced, "all"}} {
		t.Run(c.way.name+"_"+c.kind, func(t *testing.T) {
			seed := rand.Uint64N(1 << 40)
			out := c.way.launch(t, d, nil, bin, seconds, itoa(seed), c.kind).OK(t, harness.Pick(3*minute, 10*minute))
			if !strings.Contains(out, "ok stress") {
				t.Errorf("seed %d: got no \"ok\":\n%s", seed, out)
			}
			t.Log(strings.TrimSpace(out))
		})
	}
}
