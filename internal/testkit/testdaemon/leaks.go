package testdaemon

import (
	"bytes"
	"os"
	"runtime"
	"testing"
	"time"
)

// A Holding is the resources of a process that the garbage collector does not release.
type Holding struct {
	Goroutines  int
	Descriptors int
	Mappings    int // of the device's memory
}

// Holdings returns what this process holds now.
func Holdings() Holding {
	files, _ := os.ReadDir("/proc/self/fd")
	maps, _ := os.ReadFile("/proc/self/maps")
	return Holding{runtime.NumGoroutine(), len(files), bytes.Count(maps, []byte("vrdma-"))}
}

// Settles waits until no more than most is held, and else fails the test.
func Settles(t testing.TB, most Holding) {
	t.Helper()
	var now Holding
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		runtime.GC() // mappings of a closed device are released by the garbage collector
		now = Holdings()
		if now.Goroutines <= most.Goroutines && now.Descriptors <= most.Descriptors && now.Mappings <= most.Mappings {
			return
		}
	}
	stacks := make([]byte, 1<<20)
	t.Errorf("%+v are held, at most %+v were to be left\n%s", now, most, stacks[:runtime.Stack(stacks, true)])
}
