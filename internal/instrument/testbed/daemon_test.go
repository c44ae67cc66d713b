package testbed

import (
	"testing"
	"time"
)

func TestParseCPU(t *testing.T) {
	const stat = "4711 (a ) b) S 1 4711 4711 0 -1 4194560 100 0 0 0 123 77 0 0 20 0 9 0 1000 1 1"
	got, err := parseCPU(stat)
	if want := 2 * time.Second; err != nil || got != want {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	for _, bad := range []string{"", "4711 (x) S 1", "no parenthesis"} {
		if got, err := parseCPU(bad); err == nil {
			t.Errorf("parseCPU(%q) = %v, want an error", bad, got)
		}
	}
}

func TestParseMemory(t *testing.T) {
	got, err := parseMemory("VmRSS:\t  9000 kB\nRssAnon:\t    4096 kB\nRssFile:\t 1 kB\n", "RssAnon")
	if err != nil || got != 4<<20 {
		t.Errorf("got %v, %v, want %v", got, err, 4<<20)
	}
	if _, err := parseMemory("VmRSS: 1 kB\n", "RssAnon"); err == nil {
		t.Error("no error without RssAnon")
	}
}
