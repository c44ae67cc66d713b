package protocol

import (
	"errors"
	"syscall"
)

// Errno returns what a reply says of err: nothing for nil, the errno in it if there is one,
// otherwise what the caller suggests.
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
