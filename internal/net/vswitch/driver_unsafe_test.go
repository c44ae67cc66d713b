package vswitch

import (
	"sync/atomic"
	"unsafe"
)

// word returns an aligned word of the guest's memory, which lives as long as the driver.
func (d *driver) word(at int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&d.ram[at])) }
