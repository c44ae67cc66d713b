package etcdtest

import (
	"runtime"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// TestThreadEnds: a member outlives the thread that started it. Go ends threads that were in a network namespace, and
// any goroutine may run on such a thread.
func TestThreadEnds(t *testing.T) {
	c := Start(t, 1)
	m := c.Members[0]
	m.Kill()
	done := make(chan struct{})
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
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
