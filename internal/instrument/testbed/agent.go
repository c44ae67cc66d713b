package testbed

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// An Agent is vrdma on another machine or in a guest, at the other end of a line: it is asked, a line of
// JSON each, and answers, another one. Everything that it started ends with the line.
//
//	here                                     there
//	Instrument ──▶ agent ══ ssh, serial ══▶ ServeAgent ──▶ daemon, servers; in a guest: an Instrument
type Agent struct {
	vrdma, socket string // where the product and its daemon are there

	mu    sync.Mutex // one question at a time
	lost  bool       // the line has ended
	to    io.Writer
	from  *bufio.Reader
	close func() // ends the line
}

// A request has one of its fields.
type request struct {
	// Measure: run this cell.
	Measure *experiment.Cell `json:"measure,omitempty"`
	Seconds int              `json:"seconds,omitempty"`
	// Daemon: start one with these addresses.
	Daemon []string `json:"daemon,omitempty"`
	// Serve: start a server, in this way, and say when it is ready.
	Serve []string `json:"serve,omitempty"`
	Way   string   `json:"way,omitempty"`
	Port  int      `json:"port,omitempty"`
	// Used: the processor time of a server. End: end one.
	Used   int           `json:"used,omitempty"`
	End    int           `json:"end,omitempty"`
	Moment time.Duration `json:"moment,omitempty"`
	Asked  bool          `json:"asked,omitempty"`
	// Guest: be a guest of this name, whose programs have the device.
	Guest string `json:"guest,omitempty"`
	// Run: run clients at the same time, in this way, each to its end or for so long.
	Run   [][]string    `json:"run,omitempty"`
	Limit time.Duration `json:"limit,omitempty"`
	// Look: what the device has sent and the daemon has used.
	Look bool `json:"look,omitempty"`
}

// A response is to a question.
type response struct {
	Error       string                  `json:"error,omitempty"`
	Measurement *experiment.Measurement `json:"measurement,omitempty"`
	Server      int                     `json:"server,omitempty"`
	Seconds     float64                 `json:"seconds,omitempty"` // of processor time
	Said        string                  `json:"said,omitempty"`
	Bytes       uint64                  `json:"bytes,omitempty"`
	Daemon      float64                 `json:"daemon,omitempty"`
	Vrdma       string                  `json:"vrdma,omitempty"`
	Finished    []ClientResult          `json:"finished,omitempty"`
	Links       map[string]uint64       `json:"links,omitempty"`
	Socket      string                  `json:"socket,omitempty"`
}

// maxLine is how long a reply may be: a tool's output is in it.
const maxLine = 4 << 20

// ask asks and waits for the answer.
func (a *Agent) ask(ctx context.Context, q request) (r response, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	stop := context.AfterFunc(ctx, a.close)
	defer stop()
	text, err := json.Marshal(q)
	if err != nil {
		return r, err
	}
	if _, err := a.to.Write(append(text, '\n')); err != nil {
		a.lost = true
		return r, fmt.Errorf("the other machine is gone: %w", err)
	}
	return a.read(ctx)
}

// isLost reports whether nobody answers any more.
func (a *Agent) isLost() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lost
}

// read reads an answer. What is no JSON is a message of the other machine's, and left out.
func (a *Agent) read(ctx context.Context) (r response, err error) {
	for {
		line, err := readLine(a.from)
		if err != nil {
			a.lost = true
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return r, fmt.Errorf("the other machine does not answer: %w", err)
		}
		if len(line) == 0 || line[0] != '{' {
			continue
		}
		if err := json.Unmarshal(line, &r); err != nil {
			return r, fmt.Errorf("the other machine said something else than JSON: %w", err)
		}
		if r.Error != "" {
			if head, busy := strings.CutSuffix(r.Error, experiment.ErrBusy.Error()); busy {
				return r, fmt.Errorf("%s%w", head, experiment.ErrBusy)
			}
			return r, errors.New(r.Error)
		}
		return r, nil
	}
}

// readLine reads a line of at most mostReply bytes.
func readLine(from *bufio.Reader) (line []byte, err error) {
	for {
		part, err := from.ReadSlice('\n')
		if line = append(line, part...); len(line) > maxLine {
			return nil, fmt.Errorf("a line of more than %d bytes", maxLine)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

// Measure has a cell measured there.
func (a *Agent) Measure(ctx context.Context, c experiment.Cell, seconds int) (experiment.Measurement, error) {
	r, err := a.ask(ctx, request{Measure: &c, Seconds: seconds})
	if err != nil || r.Measurement == nil {
		return experiment.Measurement{}, errors.Join(err, ctx.Err())
	}
	return *r.Measurement, nil
}

func (a *Agent) counters(ctx context.Context) (response, error) {
	return a.ask(ctx, request{Look: true})
}

// startServer starts a server there.
func (a *Agent) startServer(ctx context.Context, w Launcher, port int, argv []string) (Server, error) {
	r, err := a.ask(ctx, request{Serve: argv, Way: w.Name, Port: port})
	if err != nil {
		return nil, err
	}
	return &remoteServer{a: a, id: r.Server}, nil
}

// A remoteServer is a server on another machine.
type remoteServer struct {
	a     *Agent
	id    int
	once  sync.Once
	said  string
	spent time.Duration
}

func (s *remoteServer) CPUTime() (time.Duration, error) {
	r, err := s.a.ask(context.Background(), request{Used: s.id})
	return time.Duration(r.Seconds * float64(time.Second)), err
}

func (s *remoteServer) Stop(moment time.Duration, asked bool) (string, time.Duration) {
	s.once.Do(func() {
		r, err := s.a.ask(context.Background(), request{End: s.id, Moment: moment, Asked: asked})
		s.said, s.spent = r.Said, time.Duration(r.Seconds*float64(time.Second))
		if err != nil {
			s.said = err.Error()
		}
	})
	return s.said, s.spent
}

// A ClientResult client of an agent's.
type ClientResult struct {
	Output  string  `json:"output,omitempty"`
	Seconds float64 `json:"seconds,omitempty"` // of processor time
	Error   string  `json:"error,omitempty"`
}

// RunClients runs clients in all guests at the same time.
func RunClients(ctx context.Context, w Launcher, guests []*Agent, commands map[*Agent][][]string) (map[*Agent][]ClientResult, error) {
	replies, errs := make([]response, len(guests)), make([]error, len(guests))
	var all sync.WaitGroup
	for i, at := range guests {
		all.Go(func() {
			replies[i], errs[i] = at.ask(ctx, request{Run: commands[at], Way: w.Name, Limit: ToolTimeout})
		})
	}
	all.Wait()
	done := make(map[*Agent][]ClientResult)
	for i, at := range guests {
		if n := len(replies[i].Finished); errs[i] == nil && n != len(commands[at]) {
			errs[i] = fmt.Errorf("the guest ran %d of %d clients", n, len(commands[at]))
		}
		done[at] = replies[i].Finished
	}
	return done, errors.Join(errs...)
}

// GuestTimeout is for servers and clients of guests together: the clients are ended by the guest before.
const GuestTimeout = ToolTimeout + 30*time.Second
