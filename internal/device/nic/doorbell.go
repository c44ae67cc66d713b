package nic

// A Doorbell wakes the loop that serves a session. A client rings by a write to the page at the
// beginning of its arena (Arena.Doorbell), which the loop polls while it is awake. If the page says
// that the loop sleeps, the client also writes to the Doorbell:
//
//	an eventfd (*os.File)       a process writes to it
//	any other such descriptor   a virtual machine's device writes to it
//	none (nil)                  the client's goroutine calls Engine.Ring
//
// Each write makes the descriptor readable anew, or once more; it is never read from,
// because the client may have emptied it first.
type Doorbell interface {
	Fd() uintptr
}
