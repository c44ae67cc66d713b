package provision

import (
	"encoding/json"
	"testing"

	"vrdma.dev/vrdma/internal/device/nic"
)

// A NIC continues from the sum of what it counted elsewhere and what its device counted here, whatever the device had
// counted before.
func TestLess(t *testing.T) {
	var then, here nic.Counters
	then.SentBytes, then.Drops[0], then.Refusals[1], then.Connected, then.RcvdMessages[2] = 1000, 7, 8, 9, 10
	here.SentBytes, here.Drops[0], here.RcvdPackets, here.LoopTime = 400, 9, 5, 77
	text, err := json.Marshal(carried(then))
	if err != nil {
		t.Fatal(err)
	}
	var read nic.Counters
	if err := json.Unmarshal(text, &read); err != nil || read != then {
		t.Fatalf("%v: %s", err, text)
	}
	before := less(carried(read), carried(here))
	sum := here
	sum.Add(&before)
	if sum.LoopTime, then.LoopTime = 0, 0; sum != then {
		t.Errorf("together %+v, want %+v", sum, then)
	}
}
