package test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"vrdma.dev/vrdma/internal/instrument/attack"
	"vrdma.dev/vrdma/internal/instrument/speedtable"
	"vrdma.dev/vrdma/internal/instrument/testbed"
	"vrdma.dev/vrdma/test/harness"
)

// tool starts a measuring command, `vrdma ARGS…`.
func tool(t *testing.T, args ...string) *harness.Process {
	t.Helper()
	return toolIn(t, nil, args...)
}

// toolIn is tool with environment variables.
func toolIn(t *testing.T, env []string, args ...string) *harness.Process {
	t.Helper()
	harness.Build(t)
	harness.Need(t, "ib_write_bw", "cmtime", "rping", "qperf", "ip", "nsenter", "setpriv")
	d := harness.At(filepath.Join(harness.Directory(t, nil), "s"), nil)
	cmd := d.Command(args...)
	cmd.Env = append(cmd.Env, env...)
	return harness.Spawn(t, cmd)
}

// TestDemo runs `make demo`: one host, and two hosts where the kernel allows namespaces. Root's demo runs programs as
// an ordinary user, who cannot read the directories that root's variables name.
func TestDemo(t *testing.T) {
	closed := harness.Directory(t, nil)
	if err := os.Chmod(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	p := toolIn(t, []string{"HOME=" + closed, "XDG_STATE_HOME=" + closed, "XDG_RUNTIME_DIR=" + closed}, "demo", "--rounds", "1")
	p.OK(t, 5*minute)
	out := p.Stdout()
	const two, not = "Two hosts: network namespaces", "Two hosts are not shown: no network namespace: "
	switch {
	case !strings.Contains(out, "Two processes on this machine"):
		t.Errorf("nothing about one host:\n%s", p.Output())
	case !strings.Contains(out, not) && (!strings.Contains(out, two) || !strings.Contains(out, "ping data: rdma-ping-2: ")):
		t.Errorf("nothing about two hosts:\n%s", p.Output())
	}
}

// TestBenchPart measures a part of the speed table. Every row has a value or the reason why not. The test does not
// judge the values.
func TestBenchPart(t *testing.T) {
	p := tool(t, "bench", "--only", "cm", "--rounds", "1", "--out", "", "-o", "json")
	p.OK(t, 5*minute)
	var report speedtable.Report
	if err := json.Unmarshal([]byte(p.Stdout()), &report); err != nil {
		t.Fatalf("no report: %v\n%s", err, p.Output())
	}
	if len(report.Rows) == 0 || report.Rows[0].Missing != "" || len(report.Rows[0].Ours.Values) != 1 {
		t.Errorf("got %+v\n%s", report.Rows, p.Output())
	}
}

// TestBenchInterrupted interrupts a measurement between two hosts: no process and no file is left.
func TestBenchInterrupted(t *testing.T) {
	p := tool(t, "bench", "--only", "veth", "--rounds", "100", "--out", "")
	begun := func() bool { return p.Ended(0) || strings.Contains(p.Output(), "round 1 of 100: iperf3") }
	if !harness.Poll(5*minute, begun) || p.Ended(0) {
		t.Fatalf("it does not measure\n%s", p.Output())
	}
	children := childrenOf(p.PID())
	if len(children) < 8 { // four namespaces, four daemons
		t.Fatalf("it has the children %v, want at least 8\n%s", children, p.Output())
	}
	lab := ""
	for _, child := range children { // a child may have just started, or ended
		dir, _ := os.Readlink(fmt.Sprintf("/proc/%d/cwd", child))
		if strings.Contains(dir, "vrdma-lab") {
			lab = dir
		}
	}
	syscall.Kill(p.PID(), syscall.SIGINT)
	if !p.Ended(2*minute) || p.Code() != 1 || !strings.Contains(p.Output(), "interrupted") {
		t.Fatalf("after SIGINT: %s, want exit status 1\n%s", p.Fate(), p.Output())
	}
	for _, child := range children {
		if !harness.Poll(minute, func() bool { return syscall.Kill(child, 0) != nil }) {
			t.Errorf("process %d is still there", child)
		}
	}
	if _, err := os.Stat(lab); lab == "" || !os.IsNotExist(err) {
		t.Errorf("%s is still there (%v)", lab, err)
	}
}

// childrenOf are the processes whose parent is pid.
func childrenOf(pid int) (children []int) {
	entries, _ := os.ReadDir("/proc") // a Linux without it runs none of these tests
	for _, e := range entries {
		child, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile(filepath.Join("/proc", e.Name(), "status"))
		if err == nil && strings.Contains(string(text), fmt.Sprintf("\nPPid:\t%d\n", pid)) {
			children = append(children, child)
		}
	}
	return children
}

// TestBenchAgainst measures this build against itself: both sides have values and a verdict, and the verdicts decide
// the exit status. The test does not judge the values.
func TestBenchAgainst(t *testing.T) {
	p := tool(t, "bench", "--against", harness.Binary(), "--only", "local", "--rows", "send latency, 64 B, against TCP", "--rounds", "1", "--out", "", "-o", "json")
	if !p.Ended(5 * minute) {
		t.Fatalf("it does not end\n%s", p.Output())
	}
	var report speedtable.Compared
	if err := json.Unmarshal([]byte(p.Stdout()), &report); err != nil {
		t.Fatalf("no report: %v\n%s", err, p.Output())
	}
	if len(report.Rows) != 1 || len(report.Rows[0].Ours.Values) != 1 || len(report.Rows[0].Control.Values) != 1 || len(report.Rows[0].Theirs.Values) != 1 {
		t.Fatalf("got %+v, want one number of each side\n%s", report.Rows, p.Output())
	}
	want := 0
	if len(report.Worse()) > 0 {
		want = 1
	}
	if p.Code() != want {
		t.Errorf("%s, want exit status %d\n%s", p.Fate(), want, p.Output())
	}
}

// TestBenchAttacks measures a victim beside an attacker. Afterwards the daemon releases what the attacker held.
func TestBenchAttacks(t *testing.T) {
	p := tool(t, "bench", "--attacks", "--rows", "^commands", "--rounds", "1", "--out", "", "-o", "json")
	p.OK(t, 5*minute)
	var report attack.Report
	if err := json.Unmarshal([]byte(p.Stdout()), &report); err != nil {
		t.Fatalf("no report: %v\n%s", err, p.Output())
	}
	if len(report.Rows) != 1 {
		t.Fatalf("got %+v, want one row\n%s", report.Rows, p.Output())
	}
	row := report.Rows[0]
	if row.Note != "" || row.Reached != "16 of 16" || len(row.Alone.Median.Values) != 1 || len(row.Beside.Median.Values) != 1 {
		t.Errorf("got %+v\n%s", row, p.Output())
	}
	if row.While.Files <= row.Before.Files || row.After.Files >= row.While.Files {
		t.Errorf("the daemon had %d descriptors before, %d while and %d after, want more only while\n%s",
			row.Before.Files, row.While.Files, row.After.Files, p.Output())
	}
}

// controlGroups returns the control groups that a run of bench created and did not remove.
func controlGroups(t *testing.T, pid int) []string {
	t.Helper()
	var left []string
	prefix, account := fmt.Sprintf("vrdma-bench-%d-", pid), fmt.Sprintf("vrdma-account-%d", pid)
	filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil: // groups come and go
			return fs.SkipDir
		case entry.IsDir() && (strings.HasPrefix(entry.Name(), prefix) || entry.Name() == account):
			left = append(left, path)
		}
		return nil
	})
	return left
}

// TestBenchArmed runs the program that arms many completion channels. It uses each, and afterwards no event is left.
func TestBenchArmed(t *testing.T) {
	lab, err := testbed.NewLab(harness.Binary(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer lab.Close()
	programs, err := lab.Compile(t.Context(), "armed")
	if err != nil {
		t.Fatal(err)
	}
	if out := harness.Device(t).Run(t, minute, programs["armed"], "10"); strings.TrimSpace(out) != "ready" {
		t.Errorf("got %q, want ready", out)
	}
}

// TestBenchWait measures sleeping programs, and programs in control groups of their own. Every program for this is
// built and runs. Where no control group can be created, the rows say so.
func TestBenchWait(t *testing.T) {
	const rows = "RPC, 24 B, processors kept awake|RDMA READ, 24 B, against|own: 8 B writes|^processor time for a GiB, 64 KiB writes, polling, one host"
	p := tool(t, "bench", "--only", "wait", "--rows", rows, "--rounds", "1", "--out", "", "-o", "json")
	p.OK(t, 5*minute)
	var report speedtable.Report
	if err := json.Unmarshal([]byte(p.Stdout()), &report); err != nil {
		t.Fatalf("no report: %v\n%s", err, p.Output())
	}
	if len(report.Rows) != 6 {
		t.Errorf("got %d rows, want 6\n%s", len(report.Rows), p.Output())
	}
	for _, row := range report.Rows {
		apart := strings.Contains(row.What, "groups of their own") && strings.HasPrefix(row.Missing, "no cpu control group: ")
		if !apart && (len(row.Ours.Values) != 1 || row.Against != nil && len(row.Against.Values) != 1) {
			t.Errorf("got %+v, want one number of each\n%s", row, p.Output())
		}
	}
	if left := controlGroups(t, p.PID()); len(left) > 0 {
		t.Errorf("it left the control groups %v", left)
	}
}

// TestBenchWaitInterrupted interrupts a measurement while a program keeps the processors awake: no process and no
// control group is left.
func TestBenchWaitInterrupted(t *testing.T) {
	p := tool(t, "bench", "--only", "wait", "--rows", "own: send latency, 64 B", "--rounds", "100", "--out", "")
	begun := func() bool {
		return p.Ended(0) || strings.Contains(p.Output(), "round 1 of 100: ib_send_lat -s 64, each in its own, awake")
	}
	if !harness.Poll(5*minute, begun) {
		t.Fatalf("it does not measure\n%s", p.Output())
	}
	if p.Ended(0) {
		if strings.Contains(p.Output(), "no cpu control group: ") {
			return // nothing to interrupt
		}
		t.Fatalf("it ended\n%s", p.Output())
	}
	children := childrenOf(p.PID())
	syscall.Kill(p.PID(), syscall.SIGINT)
	if !p.Ended(2*minute) || p.Code() != 1 || !strings.Contains(p.Output(), "interrupted") {
		t.Fatalf("after SIGINT: %s, want exit status 1\n%s", p.Fate(), p.Output())
	}
	for _, child := range children {
		if !harness.Poll(minute, func() bool { return syscall.Kill(child, 0) != nil }) {
			t.Errorf("process %d is still there", child)
		}
	}
	if left := controlGroups(t, p.PID()); len(left) > 0 {
		t.Errorf("it left the control groups %v", left)
	}
}
