package verbs

import (
	"errors"
	"fmt"
	"syscall"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/verbs/internal/ipc"
)

// An Error says what operation failed, why, and what to do next. Unwrap returns the reason: a
// syscall.Errno if the device refused the operation, a Status if a work request failed.
type Error struct {
	Op     string // the operation, such as "create a queue pair"
	Err    error
	Advice string // what to do next; may be empty
}

func (e *Error) Error() string {
	if e.Advice == "" {
		return fmt.Sprintf("verbs: %s: %v", e.Op, e.Err)
	}
	return fmt.Sprintf("verbs: %s: %v: %s", e.Op, e.Err, e.Advice)
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

var (
	// ErrClosed means that the object has been closed.
	ErrClosed = errors.New("closed")
	// ErrGone means that the daemon has ended, and the device with it.
	ErrGone = ipc.ErrGone
	// ErrFull means that the queue has no free entry for another request.
	ErrFull = errors.New("the queue is full")
)

// advice maps an errno to what to do next, where that does not depend on the operation.
var advice = map[syscall.Errno]string{
	syscall.ENOMEM: "the limit of registered memory or of queues is reached: free some, or raise the limit (ulimit -l, or the NIC's limits)",
	syscall.EAGAIN: "a quota of the tenant is reached: `vrdma events` says which",
	syscall.EMFILE: "too many open files: raise ulimit -n",
	syscall.EACCES: "a policy does not allow it: `vrdma policy test` says which",
	syscall.EBUSY:  "something still uses it: close that first",
}

// fault wraps an error of the device in an Error; nil stays nil.
func fault(op string, err error) error {
	if err == nil {
		return nil
	}
	var done *Error
	if errors.As(err, &done) {
		return err
	}
	e := &Error{Op: op, Err: err}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		e.Advice = advice[errno]
	}
	return e
}

// full is the advice for a queue that does not fit into the device's queue memory.
const full = "the device has no memory left for the queue: ask for fewer entries, close some, open the device again, or raise the user's limit; " +
	"in a virtual machine the log of its agent says why"

// queueFault is fault for operations that create a queue.
func queueFault(op string, err error) error {
	err = fault(op, err)
	var e *Error
	if errors.As(err, &e) && errors.Is(e.Err, syscall.ENOMEM) {
		e.Advice = full
	}
	return err
}

// A Status is the result of a work request: enum ibv_wc_status. Every value except Success is an error.
type Status uint32

const (
	Success                Status = abi.WCStatusSuccess
	LocalLengthError       Status = abi.WCStatusLocLenErr
	LocalQPOperationError  Status = abi.WCStatusLocQPOpErr
	LocalEECOperationError Status = abi.WCStatusLocEECOpErr
	LocalProtectionError   Status = abi.WCStatusLocProtErr
	Flushed                Status = abi.WCStatusWRFlushErr
	MWBindError            Status = abi.WCStatusMWBindErr
	BadResponse            Status = abi.WCStatusBadRespErr
	LocalAccessError       Status = abi.WCStatusLocAccessErr
	RemoteInvalidRequest   Status = abi.WCStatusRemInvReqErr
	RemoteAccessError      Status = abi.WCStatusRemAccessErr
	RemoteOperationError   Status = abi.WCStatusRemOpErr
	RetryExceeded          Status = abi.WCStatusRetryExcErr
	RNRRetryExceeded       Status = abi.WCStatusRNRRetryExcErr
	LocalRDDViolation      Status = abi.WCStatusLocRDDViolErr
	RemoteInvalidRDRequest Status = abi.WCStatusRemInvRDReqErr
	RemoteAborted          Status = abi.WCStatusRemAbortErr
	InvalidEECNumber       Status = abi.WCStatusInvEECNErr
	InvalidEECState        Status = abi.WCStatusInvEECStateErr
	FatalError             Status = abi.WCStatusFatalErr
	ResponseTimeout        Status = abi.WCStatusRespTimeoutErr
	GeneralError           Status = abi.WCStatusGeneralErr
)

var statusText = [...]string{
	Success:                "success",
	LocalLengthError:       "local length error",
	LocalQPOperationError:  "local queue pair operation error",
	LocalEECOperationError: "local EE context operation error",
	LocalProtectionError:   "local protection error",
	Flushed:                "flushed: the queue pair is in error",
	MWBindError:            "memory window bind error",
	BadResponse:            "bad response",
	LocalAccessError:       "local access error",
	RemoteInvalidRequest:   "remote invalid request",
	RemoteAccessError:      "remote access error",
	RemoteOperationError:   "remote operation error",
	RetryExceeded:          "retries exceeded: the peer does not answer",
	RNRRetryExceeded:       "receiver not ready: the peer has posted no receive",
	LocalRDDViolation:      "local RDD violation",
	RemoteInvalidRDRequest: "remote invalid RD request",
	RemoteAborted:          "remote aborted",
	InvalidEECNumber:       "invalid EE context number",
	InvalidEECState:        "invalid EE context state",
	FatalError:             "fatal error",
	ResponseTimeout:        "response timeout",
	GeneralError:           "general error",
}

// Error returns the status in words.
func (s Status) Error() string {
	if int(s) < len(statusText) {
		return statusText[s]
	}
	return fmt.Sprintf("status %d", uint32(s))
}

// Err returns nil for Success, and the status otherwise.
func (s Status) Err() error {
	if s == Success {
		return nil
	}
	return s
}
