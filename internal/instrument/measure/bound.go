package measure

import (
	"fmt"
	"math"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// bound sets an upper limit for a cell's bandwidth: the rate of the link. A link without a rate is limited by the machine's memory,
// because every byte is copied at least once. That copy is measured at another time of the run, and the best of a few counts.
func (in *Instrument) bound(c experiment.Cell, m *experiment.Measurement) {
	if _, has := m.Values[experiment.Bandwidth]; !has {
		return
	}
	if t, _ := experiment.FindTool(c.Tool); t.Asks {
		return // no data was moved
	}
	if rate := linkRate(c.Rate); rate > 0 {
		m.Limit, m.LimitOf = rate/8*payloadShare(c, m.MTU), "the link of "+c.Rate+", without headers"
		return
	}
	if c.Setting == experiment.Remote {
		return // the link's rate is unknown
	}
	// Tools send one buffer repeatedly, so the copy's buffers have the same size and stay in the cache, too.
	size := int(max(c.Size, 64<<10))
	if in.limits[size] == 0 {
		if in.limits == nil {
			in.limits = make(map[int]float64)
		}
		for range copyRepeats {
			in.limits[size] = max(in.limits[size], copyRate(size, 200*time.Millisecond))
		}
	}
	m.Limit, m.LimitOf = in.limits[size], fmt.Sprintf("a copy in memory by %d processors, measured in this run", runtime.NumCPU())
}

// linkRate returns a rate such as 1gbit in bit/s.
func linkRate(rate string) float64 {
	for suffix, unit := range map[string]float64{"kbit": 1e3, "mbit": 1e6, "gbit": 1e9} {
		if digits, found := strings.CutSuffix(rate, suffix); found {
			n, err := strconv.ParseFloat(digits, 64)
			if err == nil {
				return n * unit
			}
		}
	}
	return 0
}

// payloadShare is the share of a link's bytes that is not header. RoCEv2 over IPv4 has 82 bytes of headers a packet, with preamble,
// checksum and gap. TCP with timestamps has 90.
func payloadShare(c experiment.Cell, pathMTU int) float64 {
	const roce, tcp, ip = 82.0, 90.0, 52.0
	if c.Transport == experiment.TCP || c.Transport == experiment.Overlay {
		segment := float64(c.MTU) - ip
		return segment / (segment + tcp)
	}
	mtu := float64(pathMTU)
	if mtu == 0 {
		mtu = 4096
	}
	if n := float64(c.Size); n > 0 {
		return n / (n + roce*math.Ceil(n/mtu))
	}
	return mtu / (mtu + roce)
}

// maxCopy is the largest buffer of a copy. Larger ones do not fit into a cache either.
const maxCopy = 64 << 20

// copyRepeats is how often a copy is measured: other programs may run at the same time.
const copyRepeats = 3

// copyRate returns how many bytes/s all processors copy together, each between two buffers of this size.
func copyRate(size int, long time.Duration) float64 {
	size = min(size, maxCopy)
	var total atomic.Int64
	var all, ready sync.WaitGroup
	start := make(chan struct{})
	for range runtime.NumCPU() {
		ready.Add(1)
		all.Go(func() {
			from, to := make([]byte, size), make([]byte, size)
			copy(to, from) // allocates the pages
			for i := 0; i < size; i += 4096 {
				from[i] = 1
			}
			ready.Done()
			<-start
			for end := time.Now().Add(long); time.Now().Before(end); {
				copy(to, from)
				total.Add(int64(size))
			}
		})
	}
	ready.Wait()
	begin := time.Now()
	close(start)
	all.Wait()
	return float64(total.Load()) / time.Since(begin).Seconds()
}
