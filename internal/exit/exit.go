// Package exit defines errors that decide the exit status of the command line: 1 if the command failed, 2 if its arguments
// are wrong, 3 if the machine lacks something. Packages that check flags or the machine return them; package main prints them.
package exit

import "fmt"

// Exit statuses.
const (
	StatusFailed = 1
	StatusUsage  = 2
	StatusLacks  = 3
)

// An Error is an error that decides the exit status. If Err is nil the message has been printed already.
type Error struct {
	Status int
	Err    error
}

func (e *Error) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit status %d", e.Status)
	}
	return e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// Usage returns an error for a wrong command line or configuration file.
func Usage(format string, args ...any) error {
	return &Error{StatusUsage, fmt.Errorf(format, args...)}
}

// Lacks returns an error for a machine that lacks something that the command needs.
func Lacks(format string, args ...any) error {
	return &Error{StatusLacks, fmt.Errorf(format, args...)}
}
