package shimtest

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
)

var haltCases = []string{"waits", "sem", "sigwait", "inotify", "aio", "timeouts", "registers", "cancel", "counts", "pieces", "signals", "storm", "still", "children", "vfork", "server", "leaderless", "uring", "kvm"}

// haltProgram builds a test program with the library that has vrdma_halt.
func haltProgram(t *testing.T, argv ...string) *exec.Cmd {
	t.Helper()
	return command(t, startFake(t), library(t, "-DHALT_TEST"), argv...)
}

func mustHalt(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
}

// TestHalts: a program does not notice that its threads are halted hundreds of times: no system call fails, is cut
// short or ends early, no signal is lost, no child is seen. The same holds with a seccomp filter, and for an ordinary
// user.
func TestHalts(t *testing.T) {
	for _, name := range haltCases {
		t.Run(name, func(t *testing.T) {
			if os.Getuid() != 0 && name == "server" {
				t.Skip("only root has userfaultfd for system calls")
			}
			mustHalt(t, haltProgram(t, program(t, "halts"), name))
		})
	}
	for _, name := range []string{"waits", "counts", "signals"} {
		t.Run(name+"/filter", func(t *testing.T) {
			mustHalt(t, haltProgram(t, program(t, "oldkernel"), program(t, "halts"), name))
		})
		t.Run(name+"/user", func(t *testing.T) {
			if os.Getuid() != 0 {
				t.Skip("the case before was an ordinary user's")
			}
			cmd := haltProgram(t, program(t, "halts"), name)
			cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
			mustHalt(t, cmd)
		})
	}
}

// TestUnhalted: where threads cannot be halted, the shim prints a message and the program continues.
// A process that is stopped, killed or replaced in the middle of a halt leaves nothing behind.
func TestUnhalted(t *testing.T) {
	for _, name := range []string{"tracer", "filters", "user", "proc", "shared", "stop", "exec", "death"} {
		t.Run(name, func(t *testing.T) {
			if os.Getuid() != 0 && (name == "user" || name == "proc") {
				t.Skip("only root can be somebody else")
			}
			mustHalt(t, haltProgram(t, program(t, "unhalted"), name))
		})
	}
	t.Run("valgrind", func(t *testing.T) {
		mustHalt(t, haltProgram(t, "valgrind", "-q", "--error-exitcode=99", program(t, "unhalted"), "valgrind"))
	})
}
