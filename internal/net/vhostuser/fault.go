package vhostuser

import (
	"fmt"
	"runtime/debug"
)

// Contain runs f, which accesses guests' memory. If a fault ends f (after its deferred calls), it returns the fault's address, otherwise
// 0. A fault means that the owner of the memory truncated its file, or that no huge page is left. Any other panic continues.
func Contain(f func()) (fault uintptr) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			at, ok := r.(interface{ Addr() uintptr })
			if !ok {
				panic(r)
			}
			fault = at.Addr()
		}
	}()
	f()
	return 0
}

// contained is Contain for requests, which access only the memory of their own guest.
func (c *Conn) contained(f func() error) (err error) {
	if at := Contain(func() { err = f() }); at != 0 {
		if !c.Owns(at) {
			panic(fmt.Sprintf("vhostuser: fault at %#x, in no guest's memory", at))
		}
		err = fmt.Errorf("guest memory cannot be read: its file has become shorter, or there are no more huge pages")
	}
	return err
}
