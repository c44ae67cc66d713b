package deviceplugin

import (
	"fmt"
	"sync/atomic"
	"time"
)

const (
	answerTime = 5 * time.Second
	mostCalls  = 16
)

// calls are the calls that wait for a daemon.
var calls atomic.Int32

// Unanswered means that a daemon has not answered in time. It may still do what it was asked, until Ended is closed.
type Unanswered struct {
	Limit time.Duration
	Ended <-chan struct{}
}

func (u *Unanswered) Error() string {
	return fmt.Sprintf("the daemon does not answer within %v", u.Limit)
}

// bounded calls a daemon that may hang, because the kubelet and the container wait. A call that is abandoned goes on by
// itself until the daemon answers or ends. The number of such calls is bounded, and their error is an *Unanswered.
func bounded[T any](limit time.Duration, call func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	var none T
	if calls.Add(1) > mostCalls {
		calls.Add(-1)
		return none, fmt.Errorf("the daemon does not answer, and %d requests wait for it already", mostCalls)
	}
	done, ended := make(chan answer, 1), make(chan struct{})
	go func() {
		defer close(ended)
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
		return none, &Unanswered{limit, ended}
	}
}
