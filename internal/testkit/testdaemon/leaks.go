package testdaemon

import (
	"bytes"
	"os"
	"runtime"
	"testing"
	"time"
)

// A Holding is what a process holds that nobody collects.
type Holding struct {
	Goroutines  int
	Descriptors int
	Mappings    int // of the device's memory
}

// Holdings are what this process holds now.
func Holdings() Holding {
	files, _ := os.ReadDir("/proc/self/fd")
	maps, _ := os.ReadFile("/proc/self/maps")
	return Holding{runtime.NumGoroutine(), len(files), bytes.Count(maps, []byte("vrdma-"))}
}

// Settles waits until no more is held than allowed, and else fails the test: what ends, ends soon.
func Settles(t testing.TB, most Holding) {
	t.Helper()
	var now Holding
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		runtime.GC() // what a closed device has mapped goes when it is collected
		now = Holdings()
		if now.Goroutines <= most.Goroutines && now.Descriptors <= most.Descriptors && now.Mappings <= most.Mappings {
			return
		}
	}
	stacks := make([]byte, 1<<20)
	t.Errorf("%+v are held, at most %+v were to be left\n%s", now, most, stacks[:runtime.Stack(stacks, true)])
}
