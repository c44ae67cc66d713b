package metrics

import (
	"maps"
	"slices"
	"strconv"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/ib"
)

// The buckets of a histogram of delays: 2 µs, 8 µs, 33 µs … 34 ms. Each bound is one of
// nic.Delays', so that nothing is guessed.
const (
	firstBucket = ib.Time(2048) // ns
	buckets     = 8
	bucketRatio = 4
)

// waits writes how long requests waited from their doorbell to their turn, by class.
func (p *page) waits(by map[string]nic.Waits) {
	const name = "vrdma_service_delay_seconds"
	p.family(name, "histogram", "Upper bound of the delay from a request's doorbell to the loop's turn that serves it, by class of the NIC.")
	for _, class := range slices.Sorted(maps.Keys(by)) {
		w := by[class]
		bound, count, i := firstBucket, uint64(0), 0
		p.name = name + "_bucket"
		for range buckets {
			for ; i < len(w.Delays)-1 && w.Delays.Below(i) <= bound; i++ {
				count += w.Delays[i]
			}
			p.sample(float64(count), "class", class, "le", strconv.FormatFloat(float64(bound)/1e9, 'g', -1, 64))
			bound *= bucketRatio
		}
		for ; i < len(w.Delays); i++ {
			count += w.Delays[i]
		}
		p.sample(float64(count), "class", class, "le", "+Inf")
		p.name = name + "_sum"
		p.sample(float64(w.Sum)/1e9, "class", class)
		p.name = name + "_count"
		p.sample(float64(count), "class", class)
	}
}
