package bench

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
)

// A crowd is many programs that opened the device and wait.
type crowd struct {
	members []*exec.Cmd
	inputs  []io.Closer
}

// gather starts n programs, each with qps idle queue pairs, and waits until all
// are ready.
func (h *Host) gather(ctx context.Context, idle string, n, qps int) (*crowd, error) {
	c := &crowd{}
	for range n {
		_, out, err := c.admit(h.lab.command(ctx, h.Under(idle, strconv.Itoa(qps))...))
		if err != nil {
			c.dismiss()
			return nil, err
		}
		// One after the other: a hundred programs that start at once only
		// stand in each other's way.
		if line, err := bufio.NewReader(out).ReadString('\n'); strings.TrimSpace(line) != "ready" {
			c.dismiss()
			return nil, fmt.Errorf("an idle program did not become ready: %q, %w", line, err)
		}
	}
	return c, nil
}

// dismiss ends all programs and waits for them.
func (c *crowd) dismiss() {
	for _, in := range c.inputs {
		in.Close()
	}
	for _, member := range c.members {
		member.Wait() // how it ended is of no interest
	}
}

// admit starts a member with pipes to and from it.
func (c *crowd) admit(member *exec.Cmd) (in io.Writer, out io.Reader, err error) {
	member.Stderr = os.Stderr
	input, err1 := member.StdinPipe()
	output, err2 := member.StdoutPipe()
	if err := errors.Join(err1, err2); err != nil {
		return nil, nil, err
	}
	if err := member.Start(); err != nil {
		return nil, nil, err
	}
	c.members, c.inputs = append(c.members, member), append(c.inputs, input)
	return input, output, nil
}

// introduce starts a program on each host that connects this many queue pairs to the
// other's, and waits until all have exchanged something and are idle.
func (r Route) introduce(ctx context.Context, program string, count int) (c *crowd, err error) {
	c = &crowd{}
	defer func() {
		if err != nil {
			c.dismiss()
			c = nil
		}
	}()
	type end struct {
		in  io.Writer
		out *bufio.Reader
	}
	var ends []end
	for _, h := range []*Host{r.Server, r.Client} {
		in, out, err := c.admit(h.lab.command(ctx, h.Under(program, fmt.Sprint(count))...))
		if err != nil {
			return c, err
		}
		ends = append(ends, end{in, bufio.NewReader(out)})
	}
	// Each says who it is, then that it is connected, then that it is ready; the other
	// hears all but the last.
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

// engage starts one program and waits until it is ready.
func (l *Lab) engage(ctx context.Context, argv ...string) (*crowd, error) {
	c := &crowd{}
	_, out, err := c.admit(l.command(ctx, argv...))
	if err != nil {
		return nil, err
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); strings.TrimSpace(line) != "ready" {
		c.dismiss()
		return nil, fmt.Errorf("%s did not become ready: %q, %w", title(argv), line, err)
	}
	return c, nil
}
