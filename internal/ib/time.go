package ib

// Time is a time of the loop's monotonic clock, in nanoseconds. As a deadline, zero means never.
type Time int64

// Freeze returns t relative to now, in the form of package state: 0 still means never. Thaw undoes it.
func (t Time) Freeze(now Time) Time {
	switch {
	case t == 0:
		return 0
	case t >= now:
		return t - now + 1
	}
	return t - now
}

// Thaw returns what Freeze was called with, on a clock that shows now.
func (t Time) Thaw(now Time) Time {
	switch {
	case t == 0:
		return 0
	case t > 0:
		t--
	}
	if t += now; t != 0 {
		return t
	}
	return -1 // zero would mean never
}
