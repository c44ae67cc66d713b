package goperf

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"vrdma.dev/vrdma/verbs"
)

// Config is one side of a measurement. Both sides have the same Test, Size and Count.
type Config struct {
	Test   string
	Device verbs.Options
	Server bool
	Addr   string // the server's address
	Size   int
	Count  int
	Events bool // sleep until a completion event instead of polling
	Sleep  bool // sleep at once, without polling first
	TCP    bool // echo and bulk: over TCP
	Buffer int  // echo and bulk: buffer of package stream; 0: its default
}

// A test runs one side. The client returns a result.
type test func(context.Context, *Config) (Result, error)

var tests = map[string]test{
	"write-lat": onQP((*pair).writeLatency), "send-lat": onQP((*pair).sendLatency),
	"write-bw": onQP((*pair).writeBandwidth), "send-bw": onQP((*pair).sendBandwidth),
	"echo": onConn(echo), "bulk": onConn(bulk),
}

// Tests returns the names that Config.Test may have.
func Tests() []string {
	var names []string
	for name := range tests {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// A Result is two numbers, whose meaning depends on the test.
type Result [2]float64

// Run runs one side. The client prints its result.
func Run(ctx context.Context, w io.Writer, c Config) error {
	t, found := tests[c.Test]
	if !found {
		return fmt.Errorf("%q is no test: choose among %v", c.Test, Tests())
	}
	if c.Size < 4 || c.Size > 1<<30 || c.Count < 1 {
		return fmt.Errorf("%d messages of %d bytes: at least one, of 4 to 2^30", c.Count, c.Size)
	}
	r, err := t(ctx, &c)
	if err == nil && !c.Server {
		_, err = fmt.Fprintf(w, "%g %g\n", r[0], r[1])
	}
	return err
}

// latency returns median and average of half the round trips.
func latency(stamps []time.Time) Result {
	var times []time.Duration
	for i := 1; i < len(stamps); i++ {
		times = append(times, stamps[i].Sub(stamps[i-1]))
	}
	if len(times) == 0 {
		return Result{}
	}
	slices.Sort(times)
	average := stamps[len(stamps)-1].Sub(stamps[0]).Seconds() / float64(len(times))
	return Result{times[len(times)/2].Seconds() / 2, average / 2}
}

// rate returns bytes/s and messages/s.
func (c *Config) rate(took time.Duration) Result {
	perSecond := float64(c.Count) / took.Seconds()
	return Result{perSecond * float64(c.Size), perSecond}
}
