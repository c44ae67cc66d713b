package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/exit"
	"vrdma.dev/vrdma/internal/platform/launch"
)

// traceLinger bounds how long to wait for the end of a program's sessions: the daemon notices the
// program's end by itself.
const traceLinger = time.Second

func traceCommand(o *options) *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "trace [-w FILE] -- PROGRAM [ARGS...]",
		Short: "run a program and print its verbs and rdma_cm commands",
		Long: `Runs PROGRAM as vrdma run does, and prints every verbs and rdma_cm command of the program and
its children: decoded, with result and duration. At the end it lists commands refused as
unsupported. Posting and polling are not commands: they happen in shared memory and are not
shown.`,
		RunE: func(_ *cobra.Command, args []string) error {
			path, err := checkProgram(args, false)
			if err != nil {
				return err
			}
			place, err := o.place()
			if err != nil {
				return err
			}
			var out io.Writer = os.Stderr
			if file != "" {
				f, err := os.Create(file)
				if err != nil {
					return err
				}
				defer f.Close()
				out = f
			}
			return trace(place, path, args, newTraceLog(out))
		},
	}
	c.Flags().SetInterspersed(false)
	c.Flags().StringVarP(&file, "write", "w", "", "write the trace to this file instead of stderr")
	return c
}

func trace(place launch.Place, path string, args []string, log *traceLog) error {
	lease, err := ensureDaemon(place)
	if err != nil {
		return err
	}
	defer lease.Close()
	label := rand.Text()
	tracer, err := protocol.Trace(place.Socket, label)
	if err != nil {
		return fmt.Errorf("cannot trace: %w", err)
	}
	records := make(chan protocol.TraceRecord)
	go func() {
		defer close(records)
		for {
			record, err := tracer.Next()
			if err != nil {
				return // the daemon ended, or we closed it
			}
			records <- record
		}
	}()

	program := &exec.Cmd{
		Path: path, Args: args, Env: place.Environment(os.Environ(), label),
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
	}
	status, err := supervise(program, records, log)
	tracer.Close()
	for range records { // unblock the reader
	}
	log.finish()
	if err != nil {
		return &exit.Error{Status: 126, Err: fmt.Errorf("cannot execute %s: %w", path, err)}
	}
	if status != 0 {
		return &exit.Error{Status: status}
	}
	return nil
}

// supervise runs the program to its end, logs records as they arrive, and forwards signals. The
// terminal sends its signals to the program directly.
func supervise(program *exec.Cmd, records <-chan protocol.TraceRecord, log *traceLog) (status int, err error) {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2)
	defer signal.Stop(signals)
	if err := program.Start(); err != nil {
		return 0, err
	}
	ended := make(chan error, 1)
	go func() { ended <- program.Wait() }()
	var late <-chan time.Time
	for {
		select {
		case record, ok := <-records:
			if !ok {
				records = nil
				if late != nil {
					return status, nil
				}
				continue
			}
			log.add(&record)
			if late != nil && log.open == 0 {
				return status, nil
			}
		case s := <-signals:
			if s != syscall.SIGINT && s != syscall.SIGQUIT {
				program.Process.Signal(s) // fails if the program has just ended
			}
		case err := <-ended:
			status = exitStatus(program.ProcessState)
			if failed := (*exec.ExitError)(nil); err != nil && !errors.As(err, &failed) {
				return status, err
			}
			if records == nil || log.open == 0 && log.commands > 0 {
				return status, nil
			}
			late = time.After(traceLinger)
		case <-late:
			return status, nil
		}
	}
}

// exitStatus returns the exit status as a shell reports it.
func exitStatus(state *os.ProcessState) int {
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return state.ExitCode()
}
