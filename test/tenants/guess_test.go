package tenants

import (
	"testing"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/test/harness"
)

// Guesses of queue pair numbers are counted at the NIC that they hit. That NIC is in the same network: blue's guesses
// appear in blue's counters and not in red's.
func TestGuessesAreCounted(t *testing.T) {
	d := start(t, example(t))
	red := d.innocent(t)
	cmd := d.at("blue/web").command(harness.Compile(t, "hostile"), "guess_keys")
	cmd.Env = append(cmd.Env, "HOSTILE_SECONDS="+harness.Pick("0.5", "5"))
	p := harness.Spawn(t, cmd)
	red.work(t, func() bool { return p.Ended(0) })
	p.OK(t, minute)
	c := d.counters([]string{"blue/web"})["blue/web"]
	if c.Drops[nic.DropNoQP] == 0 {
		t.Errorf("blue/web has dropped %v, want guesses that met no queue pair", c.Drops)
	}
	t.Logf("blue/web: %d queue pairs guessed, %d packets met none", c.Connected, c.Drops[nic.DropNoQP])
	red.unmoved(t)
}
