package nic

import (
	"testing"

	"vrdma.dev/vrdma/internal/abi"
)

// TestKeptBursts keeps bursts for a user, which are bounded whatever their length is, and
// looks that all of it comes back.
func TestKeptBursts(t *testing.T) {
	for _, size := range []int{0, 1, 4096, 1 << 20} {
		o := newRig(t, Limits{}).objects()
		q := o.s.QP(o.qp(t, abi.QPTypeUD).Handle)
		n := 0
		for n <= tenantKept/burstState && q.Keep(size) {
			n++
		}
		if n == 0 || n > tenantKept/burstState || n*size > tenantKept {
			t.Errorf("%d bursts of %d bytes are kept for a user", n, size)
		}
		for range n {
			q.Unkeep(size)
		}
		if k := o.s.tenant.kept; k != 0 {
			t.Errorf("%d bytes are still counted", k)
		}
	}
}
