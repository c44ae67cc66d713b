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

// bound is a yardstick for a cell's bandwidth: the wire where the link has a rate, else a copy in this
// machine's memory, which every byte needs once at least. The copy is measured as well, at another moment:
// it is the best of a few.
func (in *Instrument) bound(c experiment.Cell, m *experiment.Measurement) {
	if _, has := m.Values[experiment.Bandwidth]; !has {
		return
	}
	if t, _ := experiment.FindTool(c.Tool); t.Asks {
		return // nobody moved anything
	}
	if rate := linkRate(c.Rate); rate > 0 {
		m.Limit, m.LimitOf = rate/8*payloadShare(c, m.MTU), "the link of "+c.Rate+", without headers"
		return
	}
	if c.Setting == experiment.Remote {
		return // a wire that nobody told us of
	}
	// Tools send one buffer again and again, so the copy's buffers are as large, and as warm.
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

// linkRate are those a second of a rate such as 1gbit.
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

// payloadShare is the share of a wire's bytes that is not header: RoCEv2 over IPv4 with preamble, checksum and
// gap has 82 bytes a packet, TCP with timestamps 90.
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

// maxCopy is how large the buffers of a copy are at most: larger ones are in no cache anyway.
const maxCopy = 64 << 20

// copyRepeats is how often a copy is measured. Others may have a processor meanwhile.
const copyRepeats = 3

// copyRate is how many bytes a second all processors together copy, each between two buffers of this size.
func copyRate(size int, long time.Duration) float64 {
	size = min(size, maxCopy)
	var total atomic.Int64
	var all, ready sync.WaitGroup
	start := make(chan struct{})
	for range runtime.NumCPU() {
		ready.Add(1)
		all.Go(func() {
			from, to := make([]byte, size), make([]byte, size)
			copy(to, from) // has the kernel find the pages
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
