package ib

// Time is nanoseconds on a loop's monotonic clock. Where a deadline is meant, zero is
// never.
type Time int64
