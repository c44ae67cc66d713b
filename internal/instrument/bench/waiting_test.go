package bench

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

func TestParsePingpong(t *testing.T) {
	got, err := ParsePingpong(captured(t, "rc_pingpong.txt"))
	if err != nil || !near(got, 302.55e-6) {
		t.Errorf("got %v, %v", got, err)
	}
	for name, text := range map[string]string{
		"nothing":     "",
		"it gave up":  "Failed status transport retry counter exceeded (12) for wr_id 2\n",
		"no number":   "1000 iters in 0.27 seconds = many usec/iter\n",
		"cut off":     "1000 iters in 0.27 seconds\n",
		"other units": "1000 iters in 0.27 seconds = 271.93 Mbit/sec\n",
	} {
		if got, err := ParsePingpong(text); err == nil || !strings.Contains(err.Error(), "usec/iter") {
			t.Errorf("%s: got %v, %v, want an error", name, got, err)
		}
	}
}

func TestParseNumbers(t *testing.T) {
	got, err := parseNumbers("rpc", "0.000172000 0.000180500\n", 2)
	if err != nil || len(got) != 2 || got[0] != 172e-6 || got[1] != 180.5e-6 {
		t.Errorf("got %v, %v", got, err)
	}
	for _, text := range []string{"", "1", "1 2 3", "1 two"} {
		if got, err := parseNumbers("rpc", text, 2); err == nil || !strings.Contains(err.Error(), "want 2 numbers") {
			t.Errorf("%q: got %v, %v, want an error", text, got, err)
		}
	}
}

func TestParseBusy(t *testing.T) {
	// user 1183, nice 20, system 507, idle 100000, iowait 30, irq 7, softirq 83, steal 45
	got, err := parseBusy("cpu  1183 20 507 100000 30 7 83 45 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
	if err != nil || got != 18 {
		t.Errorf("got %v, %v, want 18 s", got, err)
	}
	for _, text := range []string{"", "cpu 1 2 3\n", "cpu0 1 2 3 4 5 6 7 8 9 10\n", "cpu 1 2 3 4 5 6 x 8 9 10\n"} {
		if got, err := parseBusy(text); err == nil {
			t.Errorf("%q: got %v, want an error", text, got)
		}
	}
}

func TestSpending(t *testing.T) {
	// In the background 0.1 of a processor is busy. Within 2 s processors are busy for 1.7 s,
	// of which 1.2 s were charged to programs.
	got := between(account{101, 50, 10.1}, account{103, 51.2, 11.8}, 0.1)
	if want := (spending{1.2, 1.5}); !nearly(got.processes, want.processes) || !nearly(got.machine, want.machine) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := (spending{3, 6}).minus(spending{1, 2}).per(4); got != (spending{0.5, 1}) {
		t.Errorf("got %+v, want a half and one", got)
	}
}

func TestBustle(t *testing.T) {
	if got := bustle(0.04); got != "" {
		t.Errorf("4 %%: got %q, want nothing", got)
	}
	if got := bustle(0.3); !strings.Contains(got, "30 % of a processor") {
		t.Errorf("got %q, want 30 %%", got)
	}
}

func TestShareOf(t *testing.T) {
	ratios := []float64{1.3, 1.2, 0.7, 1.9, 1.19}
	if got := shareOf(ratios, 1.2); got != 60 {
		t.Errorf("got %v %%, want 60", got)
	}
	if got, want := ratioList(ratios[:3]), "1.30 x, 1.20 x, 0.70 x"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestTwice(t *testing.T) {
	rows := twice("RPC", "TCP", 1, 0.6)
	if len(rows) != 2 || rows[0].Unbounded || !rows[1].Unbounded || rows[0].Against == rows[1].Against || subject(rows[0].What) == subject(rows[1].What) {
		t.Errorf("got %+v", rows)
	}
	var order []string
	probe := func(name string, value float64) Probe {
		return Probe{Name: name, Unit: "s", Measure: func(context.Context) (Reading, error) {
			order = append(order, name)
			return Reading{Value: value}, nil
		}}
	}
	lab := &Lab{Dir: t.TempDir()}
	table := Table{Lab: lab, Progress: new(strings.Builder), Rounds: 1}
	rows = append(rows, reportedTwice("rping")...)
	burner := []string{"sh", "-c", "echo ready; read end"}
	if err := table.fillTwice(t.Context(), burner, []Probe{probe("ours", 1), probe("TCP", 2), probe("rping", 3)}, rows, []source{{0, 1}, {2, alone}}); err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(order, " "), "ours TCP rping ours TCP rping"; got != want {
		t.Errorf("measured %q, want %q", got, want)
	}
	for i, want := range []string{"ours", "ours, awake", "rping", "rping, awake"} {
		if got := rows[i].Ours.Name; got != want || len(rows[i].Ours.Values) != 1 {
			t.Errorf("row %d is made of %q, want %q", i, got, want)
		}
	}
	if rows[1].Against.Name != "TCP, awake" || rows[3].Against != nil {
		t.Errorf("got %+v, %+v", rows[1], rows[3])
	}
}

// A program that does not say that it is ready is an error, and is not waited for.
func TestEngage(t *testing.T) {
	lab := &Lab{Dir: t.TempDir()}
	if _, err := lab.engage(t.Context(), "sh", "-c", "echo no; exit 3"); err == nil || !strings.Contains(err.Error(), `"no`) {
		t.Errorf("got %v, want an error with what it said", err)
	}
}

// One piece that cannot be measured is no reason to leave out the next.
func TestTogether(t *testing.T) {
	table := Table{Progress: new(strings.Builder), Rows: regexp.MustCompile("first|second")}
	row := func(what string) []Row { return []Row{{What: what, Ours: Series{Unit: "s"}}} }
	p := table.together("whole",
		part{rows: row("first"), measure: func(context.Context, []Row) error { return errors.New("no namespaces") }},
		part{rows: row("second"), measure: func(_ context.Context, rows []Row) error {
			rows[0].fill(Series{Values: []float64{1}})
			return nil
		}},
		part{rows: row("third"), measure: func(context.Context, []Row) error {
			t.Error("nobody asked for the third")
			return nil
		}})
	table.measure(t.Context(), p)
	if p.rows[0].Missing != "no namespaces" || p.rows[1].Missing != "" || len(p.rows[1].Ours.Values) != 1 {
		t.Errorf("got %+v", p.rows)
	}
}

// A command may have a session of its own, and still ends with us.
func TestOwnSession(t *testing.T) {
	lab := &Lab{Dir: t.TempDir()}
	out, err := lab.Run(t.Context(), ownSession, "sh", "-c", "cut -d' ' -f1,6 /proc/$$/stat")
	words := strings.Fields(out)
	if err != nil || len(words) != 2 || words[0] != words[1] {
		t.Errorf("got %q, %v, want its process id, which is the session's too", out, err)
	}
}

func TestCPUController(t *testing.T) {
	const (
		old = `31 24 0:27 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:28 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
33 31 0:29 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
40 31 0:36 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
`
		new  = "35 24 0:30 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
		part = "35 24 0:30 /pod /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
	)
	tests := []struct {
		name, mountinfo, ours, want string
		unified                     bool
	}{
		{"version 1", old, "3:cpuset:/\n2:cpu,cpuacct:/a/b\n0::/x\n", "/sys/fs/cgroup/cpu,cpuacct/a/b", false},
		{"version 2", new, "0::/user.slice/session-1.scope\n", "/sys/fs/cgroup/user.slice/session-1.scope", true},
		{"the root", new, "0::/\n", "/sys/fs/cgroup", true},
		{"both, the controller is version 2's", old, "3:cpuset:/\n0::/x\n", "/sys/fs/cgroup/unified/x", true},
		{"a part is mounted", part, "0::/pod/one\n", "/sys/fs/cgroup/one", true},
		{"another part is mounted", part, "0::/other\n", "", false},
		{"nothing is mounted", "", "0::/\n", "", false},
		{"nonsense", "x\n - \n", "y\n", "", false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, unified, err := cpuController(test.mountinfo, test.ours)
			if got != test.want || unified != test.unified || (err != nil) != (test.want == "") {
				t.Errorf("got %q, %v, %v, want %q, %v", got, unified, err, test.want, test.unified)
			}
		})
	}
}

func FuzzCPUController(f *testing.F) {
	f.Add("35 24 0:30 /pod /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "0::/pod/one\n")
	f.Add("32 31 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n", "1:cpu:/a\n")
	f.Fuzz(func(t *testing.T, mountinfo, ours string) {
		dir, _, err := cpuController(mountinfo, ours)
		if (dir == "") == (err == nil) {
			t.Errorf("got %q, %v, want one of both", dir, err)
		}
	})
}

func FuzzWaitParsers(f *testing.F) {
	f.Add("2000 iters in 0.61 seconds = 302.55 usec/iter\n")
	f.Add("cpu  1183 20 507 100000 30 7 83 45 0 0\n")
	f.Fuzz(func(t *testing.T, text string) {
		ParsePingpong(text) // it must not panic, nor must the others
		parseBusy(text)
		parseNumbers("rpc", text, 2)
	})
}

func TestDelegating(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "scope")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	control := func(dir, text string) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	control(dir, "\n")
	control(root, "memory cpuset pids\n")
	if got, err := delegating(dir); err == nil {
		t.Errorf("got %s, want an error", got)
	}
	control(root, "cpu memory\n")
	if got, err := delegating(dir); got != root {
		t.Errorf("got %q, %v, want %q", got, err, root)
	}
	control(dir, "cpu\n")
	if got, err := delegating(dir); got != dir {
		t.Errorf("got %q, %v, want %q", got, err, dir)
	}
}

// Groups are directories: those of a dead process go, those of a living one stay.
func TestGroups(t *testing.T) {
	gone, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	gone.Wait()
	parent := t.TempDir()
	left := &groups{parent: parent, prefix: groupPrefix + strconv.Itoa(gone.Pid) + "-"}
	stale, err1 := left.add("daemon")
	mine := &groups{parent: parent, prefix: groupPrefix + strconv.Itoa(os.Getpid()) + "-"}
	fresh, err2 := mine.add("daemon")
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	mine.sweep()
	if _, err := os.Stat(stale); !os.IsNotExist(err) {
		t.Errorf("%s is still there (%v)", stale, err)
	}
	if err := mine.remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(fresh); !os.IsNotExist(err) {
		t.Errorf("%s is still there (%v)", fresh, err)
	}
	if _, err := (&groups{parent: filepath.Join(parent, "none")}).add("x"); err == nil || !strings.Contains(err.Error(), "run this as root") {
		t.Errorf("got %v, want what to do", err)
	}
}
