package etcdtest

import (
	"runtime"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// TestThreadEnds: a member outlives the thread that started it. Threads that have been in a network
// namespace end, and any goroutine may be on one before that.
func TestThreadEnds(t *testing.T) {
	c := Start(t, 1)
	m := c.Members[0]
	m.Kill()
	done := make(chan struct{})
	go func() {
		runtime.LockOSThread() // and ends: so does the thread
		defer close(done)
		m.Start()
	}()
	<-done
	c.Ready()
	select {
	case <-m.ended:
		t.Error("it has ended with the thread that started it")
	default:
	}
}
