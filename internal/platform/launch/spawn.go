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

// A daemon that is started in the background reports on descriptor 3: "ready", or
// why not. The variable tells it so.
const (
	readyVariable = "VRDMA_READY_FD"
	readyFD       = 3
	readyWord     = "ready"
)

// maxLog is how long a log may have become before a new daemon begins it anew.
const maxLog = 1 << 20

// Spawn starts command as a daemon: its own session, no terminal, output appended
// to log, and a child of init, not ours; a program that we exec later would
// otherwise find a child that it never started. So command has to be one that
// calls Detach first. Spawn returns when the daemon has called Ready.
func Spawn(ctx context.Context, command []string, log string) error {
	out, err := openPlain(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("cannot open the daemon's log: %w", err)
	}
	defer out.Close()
	if info, err := out.Stat(); err == nil && info.Size() > maxLog {
		if err := out.Truncate(0); err != nil {
			return fmt.Errorf("cannot begin the daemon's log anew: %w", err)
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

// awaitReady reads what the daemon reports until it is ready or gone.
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

// withoutPreload is env without what makes a program see a device: the daemon is
// static and ignores it, but what it says about itself should not confuse.
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

// tail is the end of what was written to the log after start, on lines of its own.
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

// Detach starts this program once more with args, as a session leader, handing
// over the report descriptor; the caller exits and leaves it to init.
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

// Ready tells whoever spawned this process that it serves now, or why it does
// not. Without such a parent it does nothing.
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
	fmt.Fprintln(report, word) // if nobody reads any more, nobody needs to know
}

func reportFile() *os.File {
	if os.Getenv(readyVariable) != fmt.Sprint(readyFD) {
		return nil
	}
	return os.NewFile(readyFD, "report")
}
