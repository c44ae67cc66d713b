package attack

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"strings"
	"time"

	"vrdma.dev/vrdma/internal/instrument/drivers"
	"vrdma.dev/vrdma/internal/instrument/experiment"
	"vrdma.dev/vrdma/internal/instrument/probe"
	"vrdma.dev/vrdma/internal/instrument/speedtable"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// An Attack is what a hostile tenant does to a daemon that it shares. programs/hostile.c implements it.
type Attack struct {
	Name  string
	What  string
	Count int
	// Busy attackers use processors of their own, as every program may. The attack "spin" shows what that alone does to a victim.
	// They have no bound.
	Busy bool
}

// Attacks are all attacks, the most expensive ones last.
var Attacks = []Attack{
	{"spin", "takes a processor, nothing else", 1, true},
	{"rnr", "QPs send to peers without receives, 10 us apart", 200, false},
	{"rnr", "QPs send to peers without receives, 10 us apart", 2000, false},
	{"ring", "QPs whose doorbells ring all the time", 500, true},
	{"copy", "QPs that write 1 MiB again and again", 8, true},
	{"commands", "programs that query the device all the time", 16, true},
	{"connections", "connections that say nothing", 8000, false},
	{"requests", "unfinished requests of tools", 8, false},
	{"qps", "idle QPs", 60000, false},
	{"error", "QPs in ERROR", 30000, false},
	{"mappings", "programs with 256 pages registered, 1 GiB apart", 280, false},
}

// Matching returns the attacks that a pattern matches: all attacks if it is nil.
func Matching(pattern *regexp.Regexp) []Attack {
	var chosen []Attack
	for _, a := range Attacks {
		if pattern == nil || pattern.MatchString(fmt.Sprintf("%s: %d %s", a.Name, a.Count, a.What)) {
			chosen = append(chosen, a)
		}
	}
	return chosen
}

// victimBound is how much an attacker that uses no processor may slow a victim down.
const victimBound = 3

// attackTimeout is the limit of one attack with all runs of the victim.
const attackTimeout = 6 * time.Minute

// messageSize is the size of the victim's messages.
const messageSize = 64

// victimMessages is how many messages of a victim are timed. A starved victim takes milliseconds for each.
const victimMessages = 2000

// A Row is the effect of an attack on a victim and on the daemon of both.
type Row struct {
	Attack string `json:"attack"`
	What   string `json:"what"`
	Count  int    `json:"count"`
	Build  string `json:"build"`
	Busy   bool   `json:"busy,omitempty"`
	// Reached is how far the attacker got, as it printed it.
	Reached string  `json:"reached"`
	Alone   Victim  `json:"alone"`
	Beside  Victim  `json:"beside"`
	Ratio   float64 `json:"ratio"` // of the medians
	// The daemon before, during and after the attack.
	Before testbed.Load `json:"before"`
	While  testbed.Load `json:"while"`
	After  testbed.Load `json:"after"`
	Pass   bool         `json:"pass"`
	// Note says what failed.
	Note string `json:"note,omitempty"`
}

// A Victim is the latency of a well-behaved program.
type Victim struct {
	Median speedtable.Series `json:"median"`
	P99    speedtable.Series `json:"p99"`
}

// A Run runs attacks against a daemon that also serves a victim.
type Run struct {
	Labs     []*testbed.Lab // the builds to attack in turn
	Names    []string       // of the builds
	Attacks  []Attack
	Rounds   int // of the victim, alone and under attack
	Progress io.Writer
}

// Run runs every attack against every build, each with a new daemon.
func (s *Run) Run(ctx context.Context, version string) (*Report, error) {
	report := &Report{Time: time.Now(), Version: version, Machine: speedtable.ThisMachine()}
	for _, attack := range s.Attacks {
		for i, lab := range s.Labs {
			fmt.Fprintf(s.Progress, "%s, %d %s, %s:\n", attack.Name, attack.Count, attack.What, s.Names[i])
			o := Row{Attack: attack.Name, What: attack.What, Count: attack.Count, Build: s.Names[i], Busy: attack.Busy}
			err := s.attack(ctx, lab, &o)
			if ctx.Err() != nil {
				return nil, testbed.ErrInterrupted
			}
			if err != nil {
				fmt.Fprintf(s.Progress, "  %v\n", err)
				o.note(err.Error())
			}
			o.judge()
			report.Rows = append(report.Rows, o)
		}
	}
	return report, nil
}

// attack runs one attack against one build.
func (s *Run) attack(ctx context.Context, lab *testbed.Lab, o *Row) error {
	ctx, cancel := context.WithTimeoutCause(ctx, attackTimeout, testbed.Timeout(attackTimeout))
	defer cancel()
	programs, err := lab.Compile(ctx, "hostile")
	if err != nil {
		return err
	}
	d, err := lab.Here.Start(ctx, "--network=false", "--mode", "0666")
	if err != nil {
		return err
	}
	defer d.Stop()
	if err := s.withDaemon(ctx, lab, d, o, programs["hostile"]); err != nil || d.Ended() {
		if d.Died(ctx) {
			return fmt.Errorf("THE DAEMON DIED: %s", d.LastWords())
		}
		return err
	}
	return nil
}

// withDaemon measures the victim alone, starts the attacker, measures the victim again and stops the attacker.
func (s *Run) withDaemon(ctx context.Context, lab *testbed.Lab, d *testbed.Daemon, o *Row, hostile string) error {
	victim, attacker, err := attackTenants(ctx, lab)
	if err != nil {
		return err
	}
	if o.Alone, err = s.measure(ctx, victim, "alone"); err != nil {
		return err
	}
	if o.Before, err = d.Load(); err != nil {
		return err
	}
	c := &testbed.IdlePrograms{}
	defer c.Stop()
	_, out, err := c.Add(lab.Command(ctx, attacker.Under(hostile, o.Attack, fmt.Sprint(o.Count))...))
	if err != nil {
		return err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	o.Reached = strings.TrimPrefix(strings.TrimSpace(line), "ready ")
	fmt.Fprintf(s.Progress, "  the attacker: %s\n", o.Reached)
	if err != nil {
		return fmt.Errorf("the attacker ended: %w", err)
	}
	if err := testbed.Sleep(ctx, testbed.SettleTime); err != nil {
		return err
	}
	if o.Beside, err = s.measure(ctx, victim, "beside"); err != nil {
		return err
	}
	if o.While, err = d.Load(); err != nil {
		return err
	}
	c.Stop()
	o.After, err = d.Settle(ctx, o.Before)
	return err
}

// measure measures the victim's latency.
func (s *Run) measure(ctx context.Context, victim *testbed.Host, how string) (v Victim, err error) {
	name := fmt.Sprintf("ib_send_lat -s %d, %s", messageSize, how)
	v = Victim{Median: speedtable.Series{Name: name, Unit: "s"}, P99: speedtable.Series{Name: name, Unit: "s"}}
	r := victim.Loopback()
	p := probe.Probe{Name: name, Unit: "s", Measure: func(ctx context.Context) (drivers.Reading, error) {
		out, err := drivers.RunPerftest(ctx, r, testbed.WithDevice, "ib_send_lat", "-s", fmt.Sprint(messageSize), "-n", fmt.Sprint(victimMessages))
		if err != nil {
			return drivers.Reading{}, err
		}
		got, err := drivers.ParseLatency(out)
		if err == nil && got.Typical > 0 && !math.IsInf(got.P99, 0) { // else it is tried again, see Probe.measure
			v.P99.Add(got.P99 * 1e-6)
		}
		return drivers.Reading{Value: got.Typical * 1e-6, Average: got.Average * 1e-6}, err
	}}
	series, err := probe.Rounds(ctx, s.Progress, s.Rounds, []probe.Probe{p})
	v.Median = series[0]
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	return v, err
}

// note adds a note.
func (o *Row) note(text string) { o.Note = strings.TrimPrefix(o.Note+"; "+text, "; ") }

// judge compares the victim's latencies with the bound.
func (o *Row) judge() {
	for _, s := range []*speedtable.Series{&o.Alone.Median, &o.Beside.Median} {
		if n := len(s.Failures); n > 0 {
			o.note(fmt.Sprintf("the victim failed in %d of %d runs: %s", n, n+len(s.Values), s.Failures[n-1]))
		}
	}
	if len(o.Alone.Median.Values) == 0 || len(o.Beside.Median.Values) == 0 {
		return
	}
	o.Ratio = o.Beside.Median.Median() / o.Alone.Median.Median()
	o.Pass = o.Ratio <= victimBound && o.Note == ""
}

func (o *Row) mark() string {
	switch {
	case o.Note != "":
		return "FAILED"
	case o.Busy:
		return ""
	case o.Pass:
		return "PASS"
	}
	return "MISS"
}

// A Report is the result of a Run.
type Report struct {
	Time    time.Time          `json:"time"`
	Version string             `json:"version"`
	Machine speedtable.Machine `json:"machine"`
	Rows    []Row              `json:"rows"`
}

// Markdown writes the report for people.
func (s *Report) Markdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "vrdma %s, %s, %s\n\n", s.Version, s.Machine, s.Time.UTC().Format("2006-01-02 15:04 UTC"))
	fmt.Fprintf(&b, "A victim's send latency, 64 B, alone and beside an attacker: median, average, 99 %%. The daemon before, while and after. The victim passes beside an idle attacker if its median is at most %d x.\n\n", victimBound)
	b.WriteString("| attack | build | reached | alone | beside | | daemon's memory | mappings | descriptors | victim |\n|---|---|---|---|---|---|---|---|---|---|\n")
	for i := range s.Rows {
		o := &s.Rows[i]
		ratio := ""
		if o.Ratio > 0 {
			ratio = fmt.Sprintf("%.3g x", o.Ratio)
		}
		fmt.Fprintf(&b, "| %s: %d %s | %s | %s | %s | %s | %s | %s, %s, %s | %d, %d, %d | %d, %d, %d | %s |\n",
			o.Attack, o.Count, o.What, o.Build, o.Reached, o.Alone.text(), o.Beside.text(), ratio,
			experiment.Amount(o.Before.Memory, "B"), experiment.Amount(o.While.Memory, "B"), experiment.Amount(o.After.Memory, "B"),
			o.Before.Mappings, o.While.Mappings, o.After.Mappings, o.Before.Files, o.While.Files, o.After.Files, o.mark())
	}
	for _, o := range s.Rows {
		if o.Note != "" {
			fmt.Fprintf(&b, "\n%s, %d, %s: %s\n", o.Attack, o.Count, o.Build, o.Note)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// text has the median, the average and the 99th percentile.
func (v *Victim) text() string {
	if len(v.Median.Values) == 0 {
		return ""
	}
	return experiment.Amount(v.Median.Median(), "s") + ", " + experiment.Amount(v.Median.Average(), "s") + ", " + experiment.Amount(v.P99.Median(), "s")
}

// JSON writes the report for programs.
func (s *Report) JSON(w io.Writer) error { return speedtable.WriteJSON(w, s) }

// Write writes the report to dir as JSON and Markdown, named by the time.
func (s *Report) Write(dir string) (path string, err error) {
	return speedtable.WriteFiles(dir, s.Time.UTC().Format("20060102-150405")+"-attacks", s)
}

// Unused user ids for victim and attacker.
const (
	victimUser   = 65534
	attackerUser = 65533
)

// attackTenants returns the hosts of victim and attacker. As root they are two other users, else both are ours.
func attackTenants(ctx context.Context, l *testbed.Lab) (victim, attacker *testbed.Host, err error) {
	if os.Getuid() != 0 {
		return l.Here, l.Here, nil
	}
	if err := os.Chmod(l.Dir, 0o755); err != nil {
		return nil, nil, err
	}
	as := func(user int) *testbed.Host {
		h := *l.Here
		// Changing the user clears the parent death signal, so setpriv sets it again.
		h.Enter = []string{"setpriv", fmt.Sprintf("--reuid=%d", user), fmt.Sprintf("--regid=%d", user), "--clear-groups", "--pdeathsig=KILL", "--"}
		return &h
	}
	victim, attacker = as(victimUser), as(attackerUser)
	for _, h := range []*testbed.Host{victim, attacker} {
		if _, err := l.Run(ctx, h.At("true")...); err != nil {
			if ctx.Err() != nil {
				return nil, nil, err
			}
			return l.Here, l.Here, nil // a small user namespace has no other users
		}
	}
	return victim, attacker, nil
}
