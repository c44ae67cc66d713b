package nic

import (
	"math/bits"
	"testing"
)

// Queue pair numbers and keys of ten thousand objects tell nothing about the next one, nor about
// those of another NIC: neither a sequence, nor a shared generator, nor one that begins with the
// same value each time. (V1 to V5 of ReDMArk.)
func TestNumbersAreRandom(t *testing.T) {
	const objects = 10_000
	for _, kind := range []struct {
		name string
		bits int
		next func(*NIC) uint32
	}{
		{"queue pairs", 24, (*NIC).newQPN},
		{"keys", 32, (*NIC).newKey},
	} {
		var drawn [2][]uint32
		for i := range drawn {
			n := newRig(t, DefaultLimits).nic
			n.Random = systemRandom
			for range objects {
				drawn[i] = append(drawn[i], kind.next(n))
			}
		}
		for _, list := range drawn {
			near, flipped := 0, 0
			ones := make([]int, kind.bits)
			for i, v := range list {
				for b := range ones {
					ones[b] += int(v >> b & 1)
				}
				if i == 0 {
					continue
				}
				flipped += bits.OnesCount32(v ^ list[i-1])
				// Also as an object: the part of a key above its variant.
				if d := int64(v) - int64(list[i-1]); max(d, -d) < 1024 {
					near++
				}
			}
			// Fair coins: five hundredths are ten standard deviations.
			for b, n := range ones {
				if n < objects*45/100 || n > objects*55/100 {
					t.Errorf("%s: bit %d is set in %d of %d", kind.name, b, n, objects)
				}
			}
			if share := float64(flipped) / float64(objects*kind.bits); share < 0.48 || share > 0.52 {
				t.Errorf("%s: from one to the next %.3f of the bits change, want half", kind.name, share)
			}
			// 2048 of 2^24 by chance: one or two of ten thousand.
			if near > 30 {
				t.Errorf("%s: %d of %d are close to the one before", kind.name, near, objects)
			}
		}
		// By chance six of ten thousand queue pair numbers are on both lists.
		seen, common := map[uint32]bool{}, 0
		for _, v := range drawn[0] {
			seen[v] = true
		}
		for _, v := range drawn[1] {
			if seen[v] {
				common++
			}
		}
		if common > 60 {
			t.Errorf("%s: %d of two NICs' %d are the same", kind.name, common, objects)
		}
	}
}
