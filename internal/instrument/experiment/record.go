package experiment

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Version is the version of the results format.
const Version = 1

// A Header is the first line of results.
type Header struct {
	Version int       `json:"version"`
	Program string    `json:"program"` // vrdma's version
	Started time.Time `json:"started"`
	Seed    uint64    `json:"seed"` // of the order of runs
	Quick   bool      `json:"quick,omitempty"`
	Machine Machine   `json:"machine"`
	// Experiments are the documents, so that results are self-contained.
	Experiments []string `json:"experiments"`
}

// A Record is the result of one run of one cell.
type Record struct {
	Experiment string    `json:"experiment"`
	Cell       Cell      `json:"cell"`
	Round      int       `json:"round"`
	Time       time.Time `json:"time"`
	Measurement
	// Failed is why there is no value.
	Failed string `json:"failed,omitempty"`
	// Repeated is how often the run was discarded: the hypervisor took processors, or the machine was too busy for the tool.
	Repeated int `json:"repeated,omitempty"`
}

// A Measurement is what an instrument returns.
type Measurement struct {
	// Values by name: latency, p99, bandwidth, rate; in seconds, bytes/s and 1/s.
	Values map[string]float64 `json:"values,omitempty"`
	// Samples is the number of messages behind the latency.
	Samples int64 `json:"samples,omitempty"`
	// CPU is processor time in seconds by role: client, server, daemon, qemu. machine is the time of all, and rest is machine less
	// the roles: interrupts and other programs. With two machines there is no rest.
	CPU map[string]float64 `json:"cpu,omitempty"`
	// Groups is the same by control group. It includes all children that were forked after their parent entered the group. A role
	// without processes is missing; nil: there are no groups.
	Groups map[string]float64 `json:"cgroups,omitempty"`
	// Seconds is the duration of the run, over which CPU was counted.
	Seconds float64 `json:"seconds,omitempty"`
	// Steady is the same without start-up and end of the programs; nil: not measured.
	Steady  *Steady            `json:"steady,omitempty"`
	Bytes   float64            `json:"bytes,omitempty"`   // sent by vrdma's devices
	Packets float64            `json:"packets,omitempty"` // sent by the device: the kernel's or vrdma's
	Links   map[string]float64 `json:"links,omitempty"`   // bytes sent by the cards of guests
	Payload float64            `json:"payload,omitempty"` // bytes moved, as the tool says
	// Window is the length of the common window of several pairs, in seconds.
	Window float64 `json:"window,omitempty"`
	// Limit is the limit of the bandwidth in bytes/s, and LimitOf its origin: the rate of a link, or a measured copy in memory.
	// The report marks values above it.
	Limit   float64 `json:"limit,omitempty"`
	LimitOf string  `json:"limit_of,omitempty"`
	// Setting says what stood for the cell's setting, if that is not obvious.
	Setting string `json:"stood_for,omitempty"`
	// Idle is what the idle daemons used before the first run, in processors.
	Idle float64 `json:"idle"`
	// Proof says what carried the bytes, and how that is known.
	Proof string `json:"proof,omitempty"`
	// MTU is the path MTU that the tool reported.
	MTU int `json:"path_mtu,omitempty"`
	// Depth is the number of outstanding requests, and Inline the largest inline message in bytes, as perftest prints them; nil:
	// the tool does not.
	Depth  int  `json:"depth,omitempty"`
	Inline *int `json:"inline,omitempty"`
	// Steal is the share of processor time that the hypervisor took.
	Steal    float64    `json:"steal,omitempty"`
	Commands [][]string `json:"commands,omitempty"`
	Output   string     `json:"output,omitempty"`
}

// Steady is what a tool used and did while it transferred. Programs need time to start, connect and register memory, which is more than
// a short transfer takes. So the tool runs twice, and Steady is the longer run less the shorter one. Runs with a common window have no
// start-up in it: there the window is the transfer.
type Steady struct {
	CPU     map[string]float64 `json:"cpu"`     // processor time in seconds by role
	Seconds float64            `json:"seconds"` // of transfer
	Samples int64              `json:"samples,omitempty"`
	Bytes   float64            `json:"bytes,omitempty"`   // sent by vrdma's devices
	Payload float64            `json:"payload,omitempty"` // bytes moved, as the tool says
}

// Beyond returns what run m took more than the shorter run s. It returns nil if the longer run did not transfer more, or not
// for clearly longer: processor time is counted in ticks of 10 ms, so a small difference says nothing.
func (m *Measurement) Beyond(s *Measurement) *Steady {
	const shortest = 0.3 // seconds
	d := &Steady{CPU: make(map[string]float64), Seconds: m.Seconds - s.Seconds, Samples: m.Samples - s.Samples, Bytes: m.Bytes - s.Bytes, Payload: m.Payload - s.Payload}
	if d.Seconds < shortest || d.Samples < 0 || d.Bytes < 0 || d.Payload < 0 || d.Samples == 0 && d.Bytes == 0 && d.Payload == 0 {
		return nil
	}
	for role, used := range m.CPU {
		d.CPU[role] = max(0, used-s.CPU[role])
	}
	return d
}

// Results are the content of a results directory.
type Results struct {
	Header  Header
	Records []Record
	// Parts are the runs that the results consist of.
	Parts []Part
	// Torn means that the last line was incomplete and was dropped.
	Torn bool
}

// FileName is the name of the file in a results directory.
const FileName = "results.ndjson"

// mostLine is the longest line in bytes. It includes the output of the tools.
const mostLine = 4 << 20

// Read reads the results of a directory.
func Read(dir string) (*Results, error) {
	path := filepath.Join(dir, FileName)
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s holds no results: run vrdma bench run --out %s", dir, dir)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, err := read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// read reads lines. A last line without a newline was cut off by a full disk or a kill.
func read(from io.Reader) (*Results, error) {
	r := &Results{}
	in := bufio.NewReaderSize(from, 64<<10)
	for n := 1; ; n++ {
		line, err := readLine(in)
		if errors.Is(err, io.EOF) && len(line) == 0 {
			break
		}
		torn := errors.Is(err, io.EOF)
		if err != nil && !torn {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if n == 1 {
			if err := json.Unmarshal(line, &r.Header); err != nil || r.Header.Version == 0 {
				return nil, errors.New("line 1 is not the head of vrdma's results")
			}
			if r.Header.Version != Version {
				return nil, fmt.Errorf("these are results of version %d, this vrdma reads %d: use the vrdma that wrote them (%s)", r.Header.Version, Version, r.Header.Program)
			}
			continue
		}
		var rec Record
		if err := json.Unmarshal(line, &rec); err != nil {
			if torn {
				r.Torn = true
				break
			}
			return nil, fmt.Errorf("line %d is damaged: %w; remove it, and bench run --resume measures it again", n, err)
		}
		r.Records = append(r.Records, rec)
		if torn {
			break
		}
	}
	if r.Header.Version == 0 {
		return nil, errors.New("the file is empty")
	}
	return r, nil
}

// readLine returns a line without its newline; io.EOF: it has none.
func readLine(in *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > mostLine:
			return nil, fmt.Errorf("longer than %d bytes", mostLine)
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil:
			return line, err
		}
		return bytes.TrimSuffix(line, []byte("\n")), nil
	}
}

// A Writer writes results. Each line is on the disk when its call returns.
type Writer struct{ f *os.File }

// Create starts results in a directory that has none.
func Create(dir string, h Header) (*Writer, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, FileName), os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o644)
	if errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("%s has results already: choose another --out, or go on with --resume", dir)
	}
	if err != nil {
		return nil, err
	}
	w := &Writer{f}
	h.Version = Version
	if err := w.line(h); err != nil {
		f.Close()
		return nil, err
	}
	return w, nil
}

// Resume continues the results of a directory. It removes an incomplete line.
func Resume(dir string) (*Writer, *Results, error) {
	r, err := Read(dir)
	if err != nil {
		return nil, nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, FileName), os.O_RDWR, 0o644)
	if err != nil {
		return nil, nil, err
	}
	if err := mend(f); err != nil {
		f.Close()
		return nil, nil, err
	}
	return &Writer{f}, r, nil
}

// mend truncates the file after its last complete line.
func mend(f *os.File) error {
	text, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	whole := bytes.LastIndexByte(text, '\n') + 1
	if rest := text[whole:]; len(rest) > 0 && json.Valid(rest) {
		_, err := f.WriteAt([]byte("\n"), int64(len(text)))
		whole = len(text) + 1
		if err != nil {
			return err
		}
	}
	if err := f.Truncate(int64(whole)); err != nil {
		return err
	}
	_, err = f.Seek(int64(whole), io.SeekStart)
	return err
}

// Write appends a record.
func (w *Writer) Write(r *Record) error { return w.line(r) }

func (w *Writer) line(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if _, err := w.f.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("the result is not kept: %w; what was written before is, and --resume goes on from there", err)
	}
	return w.f.Sync()
}

// Close closes the file.
func (w *Writer) Close() error { return w.f.Close() }

// A Part is one invocation of bench run.
type Part struct {
	Experiments []string // their documents
	Program     string   // vrdma's version
	Started     time.Time
	Machine     Machine
	Took        time.Duration
}

// mostCell is longer than any cell, with boot and repetitions. A longer gap is an interruption of the run.
const mostCell = 15 * time.Minute

// part describes the results of one run.
func (r *Results) part() Part {
	p := Part{Experiments: r.Header.Experiments, Program: r.Header.Program, Started: r.Header.Started, Machine: r.Header.Machine}
	at := r.Header.Started
	for i := range r.Records {
		rec := &r.Records[i]
		if gap := rec.Time.Sub(at); gap > 0 && gap <= mostCell {
			p.Took += gap
		}
		seconds := time.Duration(rec.Seconds * float64(time.Second))
		p.Took += seconds
		at = rec.Time.Add(seconds)
	}
	return p
}

// Merge combines results of different experiments. The header is that of the first; Parts has the others'.
func Merge(list []*Results) (*Results, error) {
	all := &Results{Header: list[0].Header}
	all.Header.Experiments = nil
	for _, r := range list {
		for _, text := range r.Header.Experiments {
			if slices.Contains(all.Header.Experiments, text) {
				return nil, fmt.Errorf("an experiment is in two of these results: to compare them, leave out -o\n%s", text)
			}
			all.Header.Experiments = append(all.Header.Experiments, text)
		}
		all.Records = append(all.Records, r.Records...)
		all.Parts = append(all.Parts, r.part())
		all.Torn = all.Torn || r.Torn
	}
	return all, nil
}
