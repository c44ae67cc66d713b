package deviceplugin

import (
	"strings"
	"testing"
	"time"
)

// A daemon that hangs blocks no caller, and does not collect waiting goroutines.
func TestBounded(t *testing.T) {
	if got, err := bounded(time.Minute, func() (int, error) { return 7, nil }); got != 7 || err != nil {
		t.Errorf("%d, %v", got, err)
	}
	stuck := make(chan struct{})
	entered := make(chan struct{}, mostCalls)
	for range mostCalls {
		if _, err := bounded(time.Millisecond, func() (int, error) { entered <- struct{}{}; <-stuck; return 0, nil }); err == nil || !strings.Contains(err.Error(), "within") {
			t.Errorf("stuck: %v", err)
		}
	}
	if _, err := bounded(time.Minute, func() (int, error) { t.Error("called"); return 0, nil }); err == nil || !strings.Contains(err.Error(), "wait for it already") {
		t.Errorf("one too many: %v", err)
	}
	for range mostCalls {
		<-entered
	}
	close(stuck)
	for end := time.Now().Add(time.Minute); calls.Load() > 0; {
		if time.Now().After(end) {
			t.Fatalf("%d calls are left", calls.Load())
		}
		time.Sleep(time.Millisecond)
	}
}
