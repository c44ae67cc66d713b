//go:build !race

package nic

import "sync/atomic"

// storeFenced stores v. No later load of this thread passes the store: on amd64 it is an XCHG, on arm64 a STLR, which a LDAR
// does not pass.
func storeFenced(p *atomic.Uint32, v uint32) { p.Store(v) }
