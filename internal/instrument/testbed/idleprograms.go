package testbed

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// IdlePrograms are programs that have opened the device and wait.
type IdlePrograms struct {
	programs []*exec.Cmd
	inputs   []io.Closer
}

// StartIdle starts n programs with this many idle queue pairs each, and waits until all are ready.
func (h *Host) StartIdle(ctx context.Context, idle string, n, qps int) (*IdlePrograms, error) {
	c := &IdlePrograms{}
	for range n {
		_, out, err := c.Add(h.Lab.Command(ctx, h.Under(idle, strconv.Itoa(qps))...))
		if err != nil {
			c.Stop()
			return nil, err
		}
		// They start one after the other: a hundred at once slow each other down.
		if line, err := bufio.NewReader(out).ReadString('\n'); strings.TrimSpace(line) != "ready" {
			c.Stop()
			return nil, fmt.Errorf("an idle program did not become ready: %q, %w", line, err)
		}
	}
	return c, nil
}

// End ends the standard input of all programs, which makes them end.
func (c *IdlePrograms) End() {
	for _, in := range c.inputs {
		in.Close()
	}
}

// Stop ends all programs and waits for them.
func (c *IdlePrograms) Stop() {
	c.End()
	for _, member := range c.programs {
		member.Wait() // the exit status does not matter
	}
}

// CPUTime returns the processor time that all programs have used, in ticks.
func (c *IdlePrograms) CPUTime() (sum time.Duration, err error) {
	for _, member := range c.programs {
		used, err := cpuTime(member.Process.Pid)
		if err != nil {
			return 0, err
		}
		sum += used
	}
	return sum, nil
}

// Add starts a program with pipes to and from it.
func (c *IdlePrograms) Add(member *exec.Cmd) (in io.Writer, out io.Reader, err error) {
	member.Stderr = os.Stderr
	input, err1 := member.StdinPipe()
	output, err2 := member.StdoutPipe()
	if err := errors.Join(err1, err2); err != nil {
		return nil, nil, err
	}
	if err := member.Start(); err != nil {
		return nil, nil, err
	}
	c.programs, c.inputs = append(c.programs, member), append(c.inputs, input)
	return input, output, nil
}

// ConnectIdle starts a program on each host that connects this many queue pairs to the other host's. It returns when all have
// exchanged a message and are idle.
func (r Route) ConnectIdle(ctx context.Context, program string, count int) (c *IdlePrograms, err error) {
	c = &IdlePrograms{}
	defer func() {
		if err != nil {
			c.Stop()
			c = nil
		}
	}()
	type end struct {
		in  io.Writer
		out *bufio.Reader
	}
	var ends []end
	for _, h := range []*Host{r.Server, r.Client} {
		in, out, err := c.Add(h.Lab.Command(ctx, h.Under(program, fmt.Sprint(count))...))
		if err != nil {
			return c, err
		}
		ends = append(ends, end{in, bufio.NewReader(out)})
	}
	// Each program prints its queue pairs, then that it is connected, then that it is ready. The first two lines go to the other
	// program.
	for step := range 3 {
		var lines [2]string
		for i, e := range ends {
			if lines[i], err = e.out.ReadString('\n'); err != nil {
				return c, fmt.Errorf("%d idle queue pairs: step %d: %w", count, step+1, err)
			}
		}
		if step == 2 {
			return c, nil
		}
		_, err1 := io.WriteString(ends[0].in, lines[1])
		_, err2 := io.WriteString(ends[1].in, lines[0])
		if err := errors.Join(err1, err2); err != nil {
			return c, err
		}
	}
	return c, nil
}

// StartReady starts one program and waits until it prints "ready".
func (l *Lab) StartReady(ctx context.Context, argv ...string) (*IdlePrograms, error) {
	c := &IdlePrograms{}
	_, out, err := c.Add(l.Command(ctx, argv...))
	if err != nil {
		return nil, err
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); strings.TrimSpace(line) != "ready" {
		c.Stop()
		return nil, fmt.Errorf("%s did not become ready: %q, %w", commandTitle(argv), line, err)
	}
	return c, nil
}
