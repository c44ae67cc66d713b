package control

import (
	"fmt"
	"time"

	"vrdma.dev/vrdma/internal/ratelimit"
)

// Every change is written to disk, delays the next, and its events displace others. So a caller that is not the
// operator has a bounded number of changes a second, and of changes at once after a pause. Dry runs count, too.
const (
	changeRate  = 5
	changeBurst = 50
	// mostPaces bounds how many users are counted apart. Only administrators of tenants get here.
	mostPaces = 1024
)

// admitChange counts a change of a user. The error says that there were too many.
func admitChange(b *ratelimit.Buckets[int], uid int, now time.Time) error {
	if _, ok := b.Take(uid, now); !ok {
		return fmt.Errorf("user %d makes too many changes: %d a second are allowed, and %d at once after a pause; wait, or put more objects into one file", uid, changeRate, changeBurst)
	}
	return nil
}
