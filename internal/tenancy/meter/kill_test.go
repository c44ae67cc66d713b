package meter

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// child is set for the process that TestKilled kills: the file it writes to.
const child = "VRDMA_TEST_METER_CHILD"

func TestMain(m *testing.M) {
	if path := os.Getenv(child); path != "" {
		countForEver(path)
	}
	os.Exit(m.Run())
}

// countForEver counts in two tenants as fast as it can, and prints before and after each flush. Roll-ups and new files
// are frequent.
func countForEver(path string) {
	mostRecords = 40
	now := epoch
	if at, err := os.Stat(path); err == nil {
		now = epoch.Add(time.Duration(at.Size()) * time.Second) // goes on, more or less
	}
	m, damage, err := Open(path, false, now)
	if err != nil || damage != nil {
		fmt.Println("error", err, damage)
		os.Exit(1)
	}
	begin := uint64(0)
	for _, t := range m.Totals() {
		begin += t.Usage[TransmitBytes]
	}
	var a, b Reading
	a.ID, a.Key = 1, Key{"red", "net", fmt.Sprint("a", begin%7)}
	b.ID, b.Key = 2, Key{"blue", "net", fmt.Sprint("b", begin%5)}
	for i := uint64(1); ; i++ {
		a.Counted[TransmitBytes] = i
		b.Counted[TransmitBytes], b.Counted[ReceiveBytes] = 2*i, i
		now = now.Add(7 * time.Second)
		m.Sample(now, []Reading{a, b})
		fmt.Println("try", begin+3*i)
		if err := m.Flush(); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		fmt.Println("did", begin+3*i)
	}
}

// TestKilled: a daemon that is killed at any moment loses only what it had not flushed, and counts nothing twice. The
// records sum up to the totals.
func TestKilled(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "usage")
	rnd := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	kills := 25
	if testing.Short() {
		kills = 5
	}
	for range kills {
		tried, did := killed(t, self, path, 1+rnd.IntN(60))
		m, damage, err := Open(path, false, epoch)
		if err != nil || damage != nil {
			t.Fatalf("after a kill: %v, %v", err, damage)
		}
		totals, records := sums(m)
		m.Close()
		wantEqual(t, "records", nonzero(records), nonzero(totals))
		got := totals["red"][TransmitBytes] + totals["blue"][TransmitBytes]
		if got < did || got > tried {
			t.Fatalf("%d counted, after %d were flushed and %d tried", got, did, tried)
		}
		if 2*totals["blue"][ReceiveBytes] != totals["blue"][TransmitBytes] || totals["red"][TransmitBytes] != totals["blue"][ReceiveBytes] {
			t.Fatalf("a flush was taken in part: %v", totals)
		}
	}
}

// killed runs a child, kills it after some lines and returns its last output.
func killed(t *testing.T, self, path string, lines int) (tried, did uint64) {
	t.Helper()
	c := exec.Command(self)
	c.Env = append(os.Environ(), child+"="+path)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewScanner(out)
	for in.Scan() {
		var n uint64
		var word string
		if fmt.Sscan(in.Text(), &word, &n); word == "error" {
			t.Error(in.Text())
		}
		switch word {
		case "try":
			tried = n
		case "did":
			did = n
		}
		if lines--; lines == 0 {
			c.Process.Kill() // its last output is still unread
		}
	}
	c.Process.Kill()
	c.Wait()
	return tried, did
}
