package filecopy

import (
	"strings"
	"testing"
	"time"
)

// TestBar: the line has the finished share, the rate of the last seconds and the remaining time.
func TestBar(t *testing.T) {
	at := time.Unix(0, 0)
	b := bar{start: at}
	line := ""
	for i := range uint64(60) { // 100 MB/s for 6 s, then 200
		at = at.Add(100 * time.Millisecond)
		line = b.line(at, (i+1)*10e6, 2e9, (i+1)*10e6)
	}
	if want := "[#######                 ]  30 %  600 MB of 2 GB  100 MB/s  0:14 left"; line != want {
		t.Errorf("got  %q\nwant %q", line, want)
	}
	if line := (&bar{start: at}).line(at, 0, 0, 0); !strings.Contains(line, "-:-- left") {
		t.Errorf("before it has begun: %q", line)
	}
	if got := clock(3*time.Hour + 4*time.Minute + 5*time.Second); got != "3:04:05" {
		t.Errorf("got %s", got)
	}
}
