package testbed

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

// A Measurer measures cells. In an rxe guest the agent measures by itself.
type Measurer interface {
	Measure(ctx context.Context, c experiment.Cell, seconds int) (experiment.Measurement, error)
	Close()
}

// An agentServer answers the requests of an Agent.
type agentServer struct {
	lab     *Lab
	in      Measurer
	daemon  *Daemon
	servers []Server
	guest   bool // it is a guest of setting vms
}

// ServeAgent answers requests until the connection ends.
func ServeAgent(ctx context.Context, lab *Lab, in Measurer, from io.Reader, to io.Writer) error {
	s := &agentServer{lab: lab, in: in}
	defer s.close()
	out := json.NewEncoder(to)
	if err := out.Encode(response{Vrdma: lab.Vrdma, Socket: lab.Here.Socket}); err != nil {
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
		var q request
		r := response{}
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

func (s *agentServer) close() {
	for _, one := range s.servers {
		one.Stop(0, false)
	}
	s.in.Close()
	if s.daemon != nil {
		s.daemon.Stop()
	}
}

func (s *agentServer) answer(ctx context.Context, q request) (r response, err error) {
	switch {
	case q.Measure != nil:
		c := *q.Measure
		c.Setting = experiment.Host // a guest measures on itself, as on one host
		m, err := s.in.Measure(ctx, c, q.Seconds)
		return response{Measurement: &m}, err
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
		return response{Links: sentByCards()}, nil
	case q.Serve != nil:
		w, known := launchers[q.Way]
		if !known {
			return r, fmt.Errorf("there is no way %q: the two vrdma differ", q.Way)
		}
		one, err := s.lab.Here.StartServer(ctx, w, q.Port, q.Serve)
		if err != nil {
			return r, err
		}
		s.servers = append(s.servers, one)
		return response{Server: len(s.servers)}, nil
	case q.Used > 0 && q.Used <= len(s.servers):
		used, err := s.servers[q.Used-1].CPUTime()
		return response{Seconds: used.Seconds()}, err
	case q.End > 0 && q.End <= len(s.servers):
		said, used := s.servers[q.End-1].Stop(q.Moment, q.Asked)
		return response{Said: said, Seconds: used.Seconds()}, nil
	case q.Look && s.daemon != nil:
		if r.Bytes, err = s.lab.Here.SentBytes(ctx); err != nil {
			return r, err
		}
		used, err := s.daemon.CPUTime()
		r.Daemon = used.Seconds()
		return r, err
	}
	return r, errors.New("a question that nobody knows: the two vrdma differ")
}

// run runs clients at the same time.
func (s *agentServer) run(ctx context.Context, q request) (r response, err error) {
	w, known := launchers[q.Way]
	if !known {
		return r, fmt.Errorf("there is no way %q: the two vrdma differ", q.Way)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, q.Limit, Timeout(q.Limit))
	defer cancel()
	var clients []*Process
	for _, argv := range q.Run {
		c, err := s.lab.Start(ctx, w.Command(s.lab.Here, argv...))
		if err != nil {
			for _, c := range clients {
				c.Stop(0, false)
			}
			return r, err
		}
		clients = append(clients, c)
	}
	for i, c := range clients {
		err := c.Wait()
		one := ClientResult{Output: c.Stdout.String(), Seconds: c.TotalCPUTime().Seconds()}
		if one.Output == "" {
			one.Output = c.Stderr.String()
		}
		if err != nil {
			one.Error = Failure(ctx, q.Run[i], err, c.Stdout.String()+c.Stderr.String()).Error()
		}
		r.Finished = append(r.Finished, one)
	}
	return r, nil
}

// beGuest starts the agent that gives the guest's programs the device.
func (s *agentServer) beGuest(ctx context.Context, name string) error {
	s.lab.Here.Socket = guestSocket
	a, err := s.lab.Start(ctx, []string{s.lab.Vrdma, "guest", "agent", "--socket", guestSocket, "--name", name, "--pin", "75"})
	if err != nil {
		return err
	}
	s.servers = append(s.servers, a)
	ctx, cancel := context.WithTimeoutCause(ctx, ToolTimeout, Timeout(ToolTimeout))
	defer cancel()
	answers := func() bool { return strings.Contains(a.Stdout.String()+a.Stderr.String(), "the daemon answers") }
	if err := Await(ctx, answers, a.Ended); err != nil {
		said, _ := a.Stop(0, false)
		return Failure(ctx, []string{"vrdma", "guest", "agent"}, err, said)
	}
	return nil
}

// sentByCards returns how many bytes each network card of the guest has sent.
func sentByCards() map[string]uint64 {
	sent := make(map[string]uint64)
	for _, eth := range []string{"eth0", "eth1"} {
		text, _ := os.ReadFile("/sys/class/net/" + eth + "/statistics/tx_bytes") // a card that does not exist has sent nothing
		var n uint64
		fmt.Sscan(string(text), &n)
		sent[eth] = n
	}
	return sent
}
