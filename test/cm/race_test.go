package cm

import (
	"testing"

	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

// A daemon built with the race detector exits at the first race.
func TestRaces(t *testing.T) {
	harness.Need(t, "ucmatose", "udaddy", "cmtime", "rstream")
	d := harness.Start(t, harness.Options{Race: true})
	h := workload.Host{Machine: d, IP: "127.0.0.1"}
	for _, w := range []workload.Managed{
		{Name: "ucmatose", Port: 7471, Server: "ucmatose -c 50", Client: "ucmatose -c 50 -s ADDR", Must: "return status 0"},
		{Name: "udaddy", Port: 7174, Server: "udaddy", Client: "udaddy -s ADDR", Must: "return status 0"},
		{Name: "cmtime", Port: 7471, Server: "cmtime", Client: "cmtime -c 50 -s ADDR", Endless: true},
		{Name: "rstream", Port: 7471, Server: "rstream -T v -S 4096 -C 50 -I 2", Client: "rstream -T v -s ADDR -S 4096 -C 50 -I 2", Must: "custom"},
	} {
		t.Run(w.Name, func(t *testing.T) { w.Run(t, h, h, 2*minute) })
	}
	d.Stop(t)
}
