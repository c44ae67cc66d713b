package testbed

import (
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

func TestHasListener(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:4853 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1
   1: 0100007F:4854 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 2
`
	for port, want := range map[int]bool{0x4853: true, 0x4854: false, 0x9C40: false} {
		if got := hasListener(table, port); got != want {
			t.Errorf("port %#x: got %v, want %v", port, got, want)
		}
	}
}

// A command in a session of its own still ends with us.
func TestOwnSession(t *testing.T) {
	lab := &Lab{Dir: t.TempDir()}
	out, err := lab.Run(t.Context(), ownSession, "sh", "-c", "cut -d' ' -f1,6 /proc/$$/stat")
	words := strings.Fields(out)
	if err != nil || len(words) != 2 || words[0] != words[1] {
		t.Errorf("got %q, %v, want its process id, which is the session's too", out, err)
	}
}

func TestParseNumbers(t *testing.T) {
	got, err := ParseNumbers("rpc", "0.000172000 0.000180500\n", 2)
	if err != nil || len(got) != 2 || got[0] != 172e-6 || got[1] != 180.5e-6 {
		t.Errorf("got %v, %v", got, err)
	}
	for _, text := range []string{"", "1", "1 2 3", "1 two"} {
		if got, err := ParseNumbers("rpc", text, 2); err == nil || !strings.Contains(err.Error(), "want 2 numbers") {
			t.Errorf("%q: got %v, %v, want an error", text, got, err)
		}
	}
}

// A program that does not print "ready" is an error.
func TestEngage(t *testing.T) {
	lab := &Lab{Dir: t.TempDir()}
	if _, err := lab.StartReady(t.Context(), "sh", "-c", "echo no; exit 3"); err == nil || !strings.Contains(err.Error(), `"no`) {
		t.Errorf("got %v, want an error with what it said", err)
	}
}

// Between returns the lines of an interval.
func TestTranscript(t *testing.T) {
	begin := time.Now()
	at := func(second float64) time.Time { return begin.Add(time.Duration(second * float64(time.Second))) }
	var said Transcript
	for i := range 4 {
		said.lines = append(said.lines, TimedLine{at(float64(i + 1)), []float64{float64(i + 1)}})
	}
	got := said.Between(at(1.5), at(3.6))
	if len(got) != 2 || got[0].Numbers[0] != 2 || got[1].Numbers[0] != 3 {
		t.Errorf("lines between 1.5 s and 3.6 s: %v, want those of 2 s and 3 s", got)
	}
}

// A link has a rate, a delay, both or neither.
func TestShaping(t *testing.T) {
	tests := []struct {
		rate, delay string
		want        []string
	}{
		{"", "", nil},
		{"1gbit", "", []string{"root tbf rate 1gbit"}},
		{"", "1ms", []string{"root handle 1: netem delay 1ms"}},
		{"1gbit", "1ms", []string{"root handle 1: netem delay 1ms", "parent 1:1 tbf rate 1gbit"}},
	}
	for _, test := range tests {
		got := shaping(experiment.Cell{Rate: test.rate, Delay: test.delay})
		if len(got) != len(test.want) {
			t.Errorf("%q %q: %v", test.rate, test.delay, got)
			continue
		}
		for i, argv := range got {
			if !strings.HasPrefix(strings.Join(argv, " "), "tc qdisc add dev eth0 "+test.want[i]) {
				t.Errorf("%q %q: %v, want %s", test.rate, test.delay, argv, test.want[i])
			}
		}
	}
}
