package ib

// Time is a time of the loop's monotonic clock, in nanoseconds. As a deadline, zero means never.
type Time int64
