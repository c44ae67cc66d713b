package launch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// A daemon in the background reports on the descriptor in this variable: "ready", or the
// error.
const (
	readyVariable = "VRDMA_READY_FD"
	readyFD       = 3
	readyWord     = "ready"
)

// maxLog is the size above which a new daemon truncates the log.
const maxLog = 1 << 20

// Spawn starts command as a daemon: in its own session, without a terminal, with its output appended
// to log, and as a child of init. A program that this process executes later would otherwise have a
// child that it never started. Therefore command must call Detach first. Spawn returns when the daemon
// has called Ready.
func Spawn(ctx context.Context, command []string, log string) error {
	out, err := openPlain(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("cannot open the daemon's log: %w", err)
	}
	defer out.Close()
	if info, err := out.Stat(); err == nil && info.Size() > maxLog {
		if err := out.Truncate(0); err != nil {
			return fmt.Errorf("cannot truncate the daemon's log: %w", err)
		}
	}
	start, err := out.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("cannot open the daemon's log: %w", err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer read.Close()

	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = out, out
	cmd.ExtraFiles = []*os.File{write}
	cmd.Env = append(withoutPreload(os.Environ()), fmt.Sprintf("%s=%d", readyVariable, readyFD))
	err = cmd.Run()
	write.Close()
	if err != nil {
		return fmt.Errorf("cannot start the daemon: %w%s", err, tail(log, start))
	}
	return awaitReady(ctx, read, log, start)
}

// awaitReady waits for the daemon's report, or its end.
func awaitReady(ctx context.Context, read *os.File, log string, start int64) error {
	if deadline, ok := ctx.Deadline(); ok {
		if err := read.SetReadDeadline(deadline); err != nil {
			return err
		}
	}
	line, err := bufio.NewReader(read).ReadString('\n')
	switch line = strings.TrimSpace(line); {
	case line == readyWord:
		return nil
	case line != "":
		return fmt.Errorf("the daemon did not start: %s", line)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("the daemon did not become ready in time; its log is %s%s", log, tail(log, start))
	}
	return fmt.Errorf("the daemon ended before it was ready; its log is %s%s", log, tail(log, start))
}

// withoutPreload returns env without the variables that make a program see a device. The daemon is
// static and ignores them, but its environment in /proc should not mislead.
func withoutPreload(env []string) []string {
	var out []string
	for _, entry := range env {
		name, _, _ := strings.Cut(entry, "=")
		switch name {
		case "LD_PRELOAD", "SYSFS_PATH", "VRDMA_SOCKET", "VRDMA_TRACE", readyVariable:
		default:
			out = append(out, entry)
		}
	}
	return out
}

// tail returns the end of the log after start, on its own lines.
func tail(log string, start int64) string {
	const most = 2048
	f, err := openPlain(log, os.O_RDONLY, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	if size, err := f.Seek(0, io.SeekEnd); err != nil || size <= start {
		return ""
	} else if size-start > most {
		start = size - most
	}
	if _, err := f.Seek(start, io.SeekStart); err != nil {
		return ""
	}
	text, err := io.ReadAll(f)
	if err != nil || len(text) == 0 {
		return ""
	}
	return ":\n" + strings.TrimRight(string(text), "\n")
}

// Detach starts this program again with args, as a session leader with the report descriptor. The caller
// then exits, and init adopts the new process.
func Detach(args []string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if report := reportFile(); report != nil {
		cmd.ExtraFiles = []*os.File{report}
		defer report.Close()
	}
	return cmd.Start()
}

// Ready reports to Spawn that this process serves, or the error. Without such a parent it does
// nothing.
func Ready(failure error) {
	report := reportFile()
	if report == nil {
		return
	}
	defer report.Close()
	defer os.Unsetenv(readyVariable)
	word := readyWord
	if failure != nil {
		word = strings.ReplaceAll(failure.Error(), "\n", " ")
	}
	fmt.Fprintln(report, word) // fails if Spawn has given up, which is fine
}

// Succeed starts a program that takes over from this process, with the same directory and output, and env in addition to
// the same environment. It returns why the program has not taken over: after a success this process ends first.
func Succeed(program string, args, env []string) error {
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer read.Close()
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{write}
	cmd.Env = append(append(os.Environ(), env...), fmt.Sprintf("%s=%d", readyVariable, readyFD))
	err = cmd.Start()
	write.Close()
	if err != nil {
		return err
	}
	said, rerr := io.ReadAll(io.LimitReader(read, maxLog))
	if werr := cmd.Wait(); len(said) == 0 {
		return errors.Join(fmt.Errorf("%s ended without a reason", program), rerr, werr)
	}
	return errors.New(strings.TrimSpace(string(said)))
}

func reportFile() *os.File {
	if os.Getenv(readyVariable) != fmt.Sprint(readyFD) {
		return nil
	}
	return os.NewFile(readyFD, "report")
}
