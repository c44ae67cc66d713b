package pods

import (
	"fmt"
	"sync/atomic"
	"time"
)

const (
	answerTime = 5 * time.Second
	mostCalls  = 16
)

// calls are those that wait for a daemon.
var calls atomic.Int32

// bounded calls a daemon that may be stuck: the kubelet waits for us, and the container for the kubelet. A call that is
// given up goes on by itself, and ends when the daemon answers or ends; there are only so many of them.
func bounded[T any](limit time.Duration, call func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	var none T
	if calls.Add(1) > mostCalls {
		calls.Add(-1)
		return none, fmt.Errorf("the daemon does not answer, and %d questions wait for it already", mostCalls)
	}
	done := make(chan answer, 1)
	go func() {
		defer calls.Add(-1)
		value, err := call()
		done <- answer{value, err}
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case a := <-done:
		return a.value, a.err
	case <-timer.C:
		return none, fmt.Errorf("the daemon does not answer within %v", limit)
	}
}
