package memory

import (
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/harness"
)

const minute = time.Minute

// A way is a user and the denied system calls (deny.c) that a program runs with.
type way struct {
	name string
	user bool
	deny string
}

var (
	root      = way{name: "root"}
	user      = way{name: "user", user: true}
	container = way{name: "container", user: true, deny: "userfaultfd"}
	untraced  = way{name: "untraced", user: true, deny: "ptrace"}
	confined  = way{name: "confined", user: true, deny: "userfaultfd,ptrace"}
	deadly    = way{name: "deadly", user: true, deny: "ptrace-kills"}

	everyWay = []way{root, user, container, untraced, confined, deadly}
)

// ordinary is an unprivileged user.
var ordinary = &syscall.Credential{Uid: 2001, Gid: 2001}

// device starts a daemon that every user may use.
func device(t *testing.T) *harness.Daemon {
	t.Helper()
	d := harness.Start(t, harness.Options{Args: []string{"--mode", "0666", "--network=false"}})
	// The daemon opens some descriptors at the first region and at the first foreign one.
	for _, name := range []string{"child_gone", "debugged"} {
		user.launch(t, d, nil, compile(t, "traits"), name).OK(t, minute)
	}
	d.NoLeaks(t)
	return d
}

// compile builds testdata/NAME.c.
func compile(t *testing.T, name string, libs ...string) string {
	t.Helper()
	dir := filepath.Join(harness.Root(), "test")
	return harness.CompileFile(t, filepath.Join(dir, "memory", "testdata", name+".c"), "gcc",
		append([]string{"-I" + filepath.Join(dir, "testdata"), "-libverbs"}, libs...)...)
}

// launch starts argv with a device, in this way.
func (w way) launch(t *testing.T, d *harness.Daemon, env []string, argv ...string) *harness.Process {
	t.Helper()
	if w.deny != "" {
		argv = append([]string{compile(t, "deny"), w.deny}, argv...)
	}
	cmd := d.ProgramCommand(argv...)
	if w.user {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: ordinary}
		cmd.Dir = "/"
	}
	cmd.Env = append(cmd.Env, "MEM_ROUNDS="+harness.Pick("1", "20"))
	cmd.Env = append(cmd.Env, env...)
	return harness.Spawn(t, cmd)
}

// cases are the names of a program's cases.
func cases(t *testing.T, bin string) []string {
	t.Helper()
	list, err := exec.Command(bin, "list").Output()
	if err != nil {
		t.Fatalf("%s list: %v", bin, err)
	}
	return strings.Fields(string(list))
}

// runCases runs the cases of a program in every way, except those for which leave returns true.
func runCases(t *testing.T, program string, ways []way, leave func(w way, name string) bool) {
	d := device(t)
	bin := compile(t, program)
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			for _, name := range cases(t, bin) {
				if leave != nil && leave(w, name) {
					continue
				}
				t.Run(name, func(t *testing.T) { runCase(t, d, w, bin, name) })
			}
		})
	}
}

// runCase runs one case and logs what it counted.
func runCase(t *testing.T, d *harness.Daemon, w way, bin, name string, env ...string) {
	t.Helper()
	out := w.launch(t, d, env, bin, name).OK(t, harness.Pick(2*minute, 20*minute))
	if !strings.Contains(out, "ok "+name) {
		t.Errorf("%s %s: got no \"ok\":\n%s", filepath.Base(bin), name, out)
	}
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "ok ") {
			t.Log(strings.TrimRight(line, "\n"))
		}
	}
}
