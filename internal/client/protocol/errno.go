package protocol

import (
	"errors"
	"syscall"
)

// Errno returns the errno for a reply: 0 for nil, the errno in err if there is one, and otherwise the caller's default.
func Errno(err error, otherwise syscall.Errno) syscall.Errno {
	if err == nil {
		return 0
	}
	var e syscall.Errno
	if errors.As(err, &e) {
		return e
	}
	return otherwise
}
