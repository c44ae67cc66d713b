package test

import (
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/test/harness"
)

// A user punches holes into its registered memory while the daemon writes there. The loop sleeps in the first hole, not
// in every hole. Another user goes on, the attacker's own data is right, and the status shows how the daemon reaches
// its memory from then on.
func TestPunchedHoles(t *testing.T) {
	bin := harness.Compile(t, "punch")
	d := harness.Start(t, harness.Options{Args: []string{"--mode", "0666"}})
	const (
		holes    = 10
		shortest = 40 // ms
	)
	var quiet []int // the victim's waits in the control
	var usual int   // how long the control took for a hole
	for _, what := range []string{"control", "holes"} {
		victim, endVictim := launchAs(t, d, bystanderUID, bin, "victim")
		victim.Printed(t, "begun", minute)
		attacker, endAttacker := launchAs(t, d, attackerUID, bin, "256", strconv.Itoa(holes), what)
		attacker.Printed(t, "done", 5*minute)
		each := numbers(attacker.Output(), `each took (\d+)`)[0]
		if what == "holes" && each >= shortest {
			checkAside(t, d)
		}
		endVictim()
		victim.OK(t, minute)
		endAttacker()
		attacker.OK(t, minute)
		waits := numbers(victim.Output(), `slow (\d+)`)
		t.Logf("%s: %sthe victim waited %v", what, attacker.Output(), waits)
		if what == "control" {
			quiet, usual = waits, max(each, 1)
			continue
		}
		if each < shortest {
			t.Logf("a hole takes only %d ms: the loop's sleep is hardly longer than what the watcher notices", each)
			break
		}
		// A wait of half a hole's length may be a stall, or the machine is busy: then the control shows it, too, as
		// often in the same time.
		if n, most := longer(waits, each/2), 2*longer(quiet, each/2)*max(each, usual)/usual+holes/2; n > most {
			t.Errorf("another user waited %d times, want %d times at most\n%s", n, most, harness.Tail(d.Process.Output(), 20))
		}
		if !strings.Contains(d.Process.Output(), "a page of registered memory stopped the loop") {
			t.Errorf("the log does not tell of it:\n%s", harness.Tail(d.Process.Output(), 20))
		}
	}
	startStream(t, d, 640).finishes(t)
}

// checkAside checks that the daemon reaches all memory of a punching program by copying, and the reason.
func checkAside(t *testing.T, d *harness.Daemon) {
	t.Helper()
	for _, s := range d.Status(t).Sessions {
		if s.Memory.Foreign < 256<<20 {
			continue
		}
		if s.Memory.Own+s.Memory.Shared != 0 || !slices.Contains(s.Memory.Why, protocol.WhyStalled.String()) {
			t.Errorf("the status says %+v", s.Memory)
		}
		return
	}
	t.Errorf("no session whose memory is reached by copying:\n%s", harness.Tail(d.Process.Output(), 20))
}

// launchAs starts a program as another user, if permitted. end closes its standard input.
func launchAs(t *testing.T, d *harness.Daemon, uid uint32, argv ...string) (p *harness.Process, end func()) {
	t.Helper()
	cmd := d.ProgramCommand(argv...)
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		cmd.Dir = "/"
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	return harness.Spawn(t, cmd), func() { in.Close() }
}

// numbers returns the numbers in out that match the parentheses of the pattern.
func numbers(out, pattern string) (list []int) {
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(out, -1) {
		n, _ := strconv.Atoi(m[1])
		list = append(list, n)
	}
	return list
}

// longer counts the numbers that are at least n.
func longer(list []int, n int) (k int) {
	for _, v := range list {
		if v >= n {
			k++
		}
	}
	return k
}
