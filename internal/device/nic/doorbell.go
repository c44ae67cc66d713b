package nic

// A Doorbell wakes the loop that serves a session. What a client rings is the page at the
// beginning of its arena (Arena.Doorbell), which the loop reads while it is awake; only if
// the page says that the loop rests does the client do more:
//
//	an eventfd (*os.File)       a process writes to it
//	any other such descriptor   a virtual machine's device writes to it
//	none (nil)                  whoever is the client calls Engine.Ring
//
// Each write makes the descriptor readable anew, or once more; it is never read from,
// because the client may have emptied it first.
type Doorbell interface {
	Fd() uintptr
}
