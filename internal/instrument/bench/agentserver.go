package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// A measurer measures cells, for a guest that does so by itself.
type measurer interface {
	Measure(ctx context.Context, c experiment.Cell, seconds int) (experiment.Measurement, error)
	Close()
}

// A servant answers the questions of an agent.
type servant struct {
	lab     *Lab
	in      measurer
	daemon  *daemon
	servers []server
	guest   bool // of setting vms
}

// ServeAgent answers questions until the line ends.
func ServeAgent(ctx context.Context, lab *Lab, in measurer, from io.Reader, to io.Writer) error {
	s := &servant{lab: lab, in: in}
	defer s.close()
	out := json.NewEncoder(to)
	if err := out.Encode(reply{Vrdma: lab.Vrdma, Socket: lab.Here.Socket}); err != nil {
		return err
	}
	questions := bufio.NewReader(from)
	for {
		line, err := readLine(questions)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var q question
		r := reply{}
		if err = json.Unmarshal(line, &q); err == nil {
			r, err = s.answer(ctx, q)
		}
		if err != nil {
			r.Error = err.Error()
		}
		if err := out.Encode(r); err != nil {
			return err
		}
	}
}

func (s *servant) close() {
	for _, one := range s.servers {
		one.end(0, false)
	}
	s.in.Close()
	if s.daemon != nil {
		s.daemon.stop()
	}
}

func (s *servant) answer(ctx context.Context, q question) (r reply, err error) {
	switch {
	case q.Measure != nil:
		c := *q.Measure
		c.Setting = experiment.Host // which the guest is for itself
		m, err := s.in.Measure(ctx, c, q.Seconds)
		return reply{Measurement: &m}, err
	case q.Daemon != nil:
		if s.daemon == nil {
			s.daemon, err = s.lab.Here.Start(ctx, q.Daemon...)
		}
		return r, err
	case q.Guest != "":
		s.guest = true
		return r, s.beGuest(ctx, q.Guest)
	case q.Run != nil:
		return s.run(ctx, q)
	case q.Look && s.guest: // the host asks its daemon
		return reply{Links: links()}, nil
	case q.Serve != nil:
		w, known := waysByName[q.Way]
		if !known {
			return r, fmt.Errorf("there is no way %q: the two vrdma differ", q.Way)
		}
		one, err := s.lab.Here.serve(ctx, w, q.Port, q.Serve)
		if err != nil {
			return r, err
		}
		s.servers = append(s.servers, one)
		return reply{Server: len(s.servers)}, nil
	case q.Used > 0 && q.Used <= len(s.servers):
		used, err := s.servers[q.Used-1].used()
		return reply{Seconds: used.Seconds()}, err
	case q.End > 0 && q.End <= len(s.servers):
		said, used := s.servers[q.End-1].end(q.Moment, q.Asked)
		return reply{Said: said, Seconds: used.Seconds()}, nil
	case q.Look && s.daemon != nil:
		if r.Bytes, err = s.lab.Here.sent(ctx); err != nil {
			return r, err
		}
		used, err := s.daemon.cpu()
		r.Daemon = used.Seconds()
		return r, err
	}
	return r, errors.New("a question that nobody knows: the two vrdma differ")
}

// run runs clients at the same time, in the guest.
func (s *servant) run(ctx context.Context, q question) (r reply, err error) {
	w, known := waysByName[q.Way]
	if !known {
		return r, fmt.Errorf("there is no way %q: the two vrdma differ", q.Way)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, q.Limit, tooLong(q.Limit))
	defer cancel()
	var clients []*started
	for _, argv := range q.Run {
		c, err := s.lab.start(ctx, w.side(s.lab.Here, argv...))
		if err != nil {
			for _, c := range clients {
				c.end(0, false)
			}
			return r, err
		}
		clients = append(clients, c)
	}
	for i, c := range clients {
		err := c.wait()
		one := finished{Output: c.out.String(), Seconds: c.spent().Seconds()}
		if one.Output == "" {
			one.Output = c.said.String()
		}
		if err != nil {
			one.Error = failure(ctx, q.Run[i], err, c.out.String()+c.said.String()).Error()
		}
		r.Finished = append(r.Finished, one)
	}
	return r, nil
}

// beGuest starts the agent that gives programs of the guest the device.
func (s *servant) beGuest(ctx context.Context, name string) error {
	s.lab.Here.Socket = guestSocket
	a, err := s.lab.start(ctx, []string{s.lab.Vrdma, "guest", "agent", "--socket", guestSocket, "--name", name, "--pin", "75"})
	if err != nil {
		return err
	}
	s.servers = append(s.servers, a)
	ctx, cancel := context.WithTimeoutCause(ctx, toolTimeout, tooLong(toolTimeout))
	defer cancel()
	answers := func() bool { return strings.Contains(a.out.String()+a.said.String(), "the daemon answers") }
	if err := await(ctx, answers, a.ended); err != nil {
		said, _ := a.end(0, false)
		return failure(ctx, []string{"vrdma", "guest", "agent"}, err, said)
	}
	return nil
}

// links are what the guest's cards have sent, in bytes.
func links() map[string]uint64 {
	sent := make(map[string]uint64)
	for _, eth := range []string{"eth0", "eth1"} {
		text, _ := os.ReadFile("/sys/class/net/" + eth + "/statistics/tx_bytes") // no card: 0
		var n uint64
		fmt.Sscan(string(text), &n)
		sent[eth] = n
	}
	return sent
}
