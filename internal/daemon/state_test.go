package daemon

import (
	"testing"

	"vrdma.dev/vrdma/internal/state/statetest"
)

// TestStateGolden reads what a daemon of each format sends to the next one: with every field of a daemon's state, of its NICs, clients,
// regions, connections, meters and hosts.
func TestStateGolden(t *testing.T) {
	statetest.Golden(t, "greeting", statetest.Filled[greeting]())
	statetest.Golden(t, "offer", statetest.Filled[offer]())
	statetest.Golden(t, "daemon", statetest.Filled[daemonState]()) // of before virtual machines with an agent
	statetest.Golden(t, "guests", statetest.Filled[daemonState]())
}
