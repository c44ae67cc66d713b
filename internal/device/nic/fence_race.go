//go:build race

package nic

import "sync/atomic"

// storeFenced stores v. The race detector's Store is a plain store outside of Go's heap, and a later load may pass it. Its Swap is an
// XCHG. Programs are built without the race detector; tests that race with the loop are built with it.
func storeFenced(p *atomic.Uint32, v uint32) { p.Swap(v) }
