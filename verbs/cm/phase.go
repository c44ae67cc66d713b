package cm

import (
	"context"
	"errors"
)

// A phase is a part of connecting in which the caller's context can end.
type phase struct {
	name   string
	advice string
}

var (
	phaseAddress = phase{"resolving the address", "no neighbour answers for it: check the address, the route and the cable, with ping for instance"}
	phaseRoute   = phase{"resolving the route", "the daemon is slow: `vrdma status` says whether it has a processor"}
	phaseReply   = phase{"waiting for the peer's reply", "the host is down, drops UDP port 4791, or its program does not accept: run `vrdma status` there"}
)

// A lateError says in which phase the context ended. It unwraps to the context's error.
type lateError struct {
	during phase
	err    error
}

func (e *lateError) Error() string { return "while " + e.during.name + ": " + e.err.Error() }
func (e *lateError) Unwrap() error { return e.err }

// of adds the phase to the error of a context. Other errors name their cause already.
func (p phase) of(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return &lateError{during: p, err: err}
	}
	return err
}
