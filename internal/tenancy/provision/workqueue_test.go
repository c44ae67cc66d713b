package provision

import (
	"testing"
	"time"
)

// TestWorkQueueRest: a recent item is delayed, also while others are processed, because more may come. The items record
// the times themselves, so a busy machine only makes the wait longer.
func TestWorkQueueRest(t *testing.T) {
	var c workQueue
	c.start()
	defer c.stop()
	came, done := make(chan time.Time, 1), make(chan time.Time, 1)
	c.add(func() {
		came <- time.Now()
		c.add(func() { done <- time.Now() }) // a NIC is put in meanwhile
	})
	added := <-came
	if wait := (<-done).Sub(added); wait < restTime/2 {
		t.Errorf("a item that came while another was done was done %v later, want %v", wait, restTime)
	}
}
