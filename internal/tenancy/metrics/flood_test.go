package metrics

import (
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"time"
)

// TestConnectionFlood: a user opens connections without end and asks for nothing. They take few descriptors of the daemon, and
// scrapers are answered afterwards.
func TestConnectionFlood(t *testing.T) {
	s := serve(t, world(1))
	files := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	before := files()
	const n = 4 * mostConnections
	var open []net.Conn
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	for range n {
		c, err := net.Dial("tcp", s.l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
	}
	// The last ones are closed by the server, which has taken all of them then.
	last := open[n-1]
	last.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := last.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
		t.Errorf("a connection above the limit: %v", err)
	}
	if got := files() - before; got > n+mostConnections+8 {
		t.Errorf("%d connections take %d descriptors, %d of them at the server, want at most %d", n, got, got-n, mostConnections)
	}
	for _, c := range open {
		c.Close()
	}
	url := "http://" + s.l.Addr().String() + "/metrics"
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		r, err := http.Get(url)
		if err == nil {
			_, err = io.Copy(io.Discard, r.Body)
			r.Body.Close()
			if err == nil && r.StatusCode == http.StatusOK {
				return
			}
		}
		if time.Now().After(end) {
			t.Fatalf("no answer after the flood: %v", err)
		}
	}
}
