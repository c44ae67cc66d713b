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

// An Agent is the connection to a vrdma program on another machine or in a guest. Each request is a line of JSON, and so is its
// response. Everything that the other side started ends with the connection.
//
//	here                                     there
//	Instrument ──▶ Agent ══ ssh, serial ══▶ ServeAgent ──▶ daemon, servers; in an rxe guest: an Instrument
type Agent struct {
	vrdma, socket string // paths of the program and of its daemon's socket on the other side

	mu    sync.Mutex // one request at a time
	lost  bool       // the connection has ended
	to    io.Writer
	from  *bufio.Reader
	close func() // ends the connection
}

// A request has one of these fields.
type request struct {
	// Measure measures this cell.
	Measure *experiment.Cell `json:"measure,omitempty"`
	Seconds int              `json:"seconds,omitempty"`
	// Daemon starts a daemon with these addresses.
	Daemon []string `json:"daemon,omitempty"`
	// Serve starts a server with the launcher Way and answers when it is ready.
	Serve []string `json:"serve,omitempty"`
	Way   string   `json:"way,omitempty"`
	Port  int      `json:"port,omitempty"`
	// Used asks for the processor time of a server, End stops one.
	Used   int           `json:"used,omitempty"`
	End    int           `json:"end,omitempty"`
	Moment time.Duration `json:"moment,omitempty"`
	Asked  bool          `json:"asked,omitempty"`
	// Guest gives programs in the guest of this name the device.
	Guest string `json:"guest,omitempty"`
	// Run runs clients at the same time with the launcher Way, each for at most Limit.
	Run   [][]string    `json:"run,omitempty"`
	Limit time.Duration `json:"limit,omitempty"`
	// Look asks for the counters of the device and the processor time of the daemon.
	Look bool `json:"look,omitempty"`
}

// A response answers a request.
type response struct {
	Error       string                  `json:"error,omitempty"`
	Measurement *experiment.Measurement `json:"measurement,omitempty"`
	Server      int                     `json:"server,omitempty"`
	Seconds     float64                 `json:"seconds,omitempty"` // processor time
	Said        string                  `json:"said,omitempty"`
	Bytes       uint64                  `json:"bytes,omitempty"`
	Daemon      float64                 `json:"daemon,omitempty"`
	Vrdma       string                  `json:"vrdma,omitempty"`
	Finished    []ClientResult          `json:"finished,omitempty"`
	Links       map[string]uint64       `json:"links,omitempty"`
	Socket      string                  `json:"socket,omitempty"`
}

// maxLine is the longest line in bytes. A response contains the output of a tool.
const maxLine = 4 << 20

// ask sends a request and waits for the response.
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

// isLost reports whether the connection has ended.
func (a *Agent) isLost() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lost
}

// read reads a response. It skips lines that are not JSON, such as a login message.
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

// readLine reads a line of at most maxLine bytes.
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

// Measure measures a cell on the other side.
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

// startServer starts a server on the other side.
func (a *Agent) startServer(ctx context.Context, w Launcher, port int, argv []string) (Server, error) {
	r, err := a.ask(ctx, request{Serve: argv, Way: w.Name, Port: port})
	if err != nil {
		return nil, err
	}
	return &remoteServer{a: a, id: r.Server}, nil
}

// A remoteServer is a server that an agent started.
type remoteServer struct {
	a     *Agent
	id    int
	once  sync.Once
	said  string
	spent time.Duration
}

// CPUTime asks the other side for the processor time.
func (s *remoteServer) CPUTime() (time.Duration, error) {
	r, err := s.a.ask(context.Background(), request{Used: s.id})
	return time.Duration(r.Seconds * float64(time.Second)), err
}

// Stop ends the server on the other side.
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

// A ClientResult is what a client printed and used on the other side.
type ClientResult struct {
	Output  string  `json:"output,omitempty"`
	Seconds float64 `json:"seconds,omitempty"` // processor time
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

// GuestTimeout is the limit for servers and clients of guests together. It is longer than ToolTimeout, so that the guest ends its
// clients first and can report why.
const GuestTimeout = ToolTimeout + 30*time.Second
