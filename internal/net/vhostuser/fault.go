package vhostuser

import (
	"fmt"
	"runtime/debug"
)

// Contain runs f, which touches guests' memory. It returns the address of a fault, at which f ended
// (deferred calls were made), or 0. The owner of the memory made its file shorter, or has no huge page left.
// Any other panic goes on.
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

// contained is Contain for requests, which touch the memory of their own guest only.
func (c *Conn) contained(f func() error) (err error) {
	if at := Contain(func() { err = f() }); at != 0 {
		if !c.Owns(at) {
			panic(fmt.Sprintf("vhostuser: fault at %#x, in no guest's memory", at))
		}
		err = fmt.Errorf("guest memory cannot be read: its file has become shorter, or there are no more huge pages")
	}
	return err
}
