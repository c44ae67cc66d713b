package testbed

import (
	"bufio"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// noCells measures nothing.
type noCells struct{}

func (noCells) Measure(context.Context, experiment.Cell, int) (m experiment.Measurement, err error) {
	return m, errors.New("no cells here")
}

func (noCells) Close() {}

// Requests get responses, also unknown ones. Other lines are skipped. Both sides report the end of the connection.
func TestAgent(t *testing.T) {
	ours, theirs := io.Pipe()
	back, answers := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		io.WriteString(answers, "Welcome to a machine\n\n")
		err := ServeAgent(context.Background(), &Lab{Vrdma: "/there/vrdma", Here: &Host{Socket: "/there/s"}}, noCells{}, ours, answers)
		answers.Close()
		ended <- err
	}()
	a := &Agent{to: theirs, from: bufio.NewReader(back), close: func() {}}
	hello, err := a.read(context.Background())
	if err != nil || hello.Vrdma != "/there/vrdma" || hello.Socket != "/there/s" {
		t.Fatalf("it says %+v, %v", hello, err)
	}
	for _, q := range []request{{}, {Used: 7}, {End: 1}, {Serve: []string{"true"}, Way: "broom"}, {Look: true}} {
		if _, err := a.ask(context.Background(), q); err == nil || !strings.Contains(err.Error(), "the two vrdma differ") {
			t.Errorf("%+v: %v", q, err)
		}
	}
	if _, err := io.WriteString(theirs, "{nonsense\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := a.read(context.Background()); err == nil || !strings.Contains(err.Error(), "invalid character") {
		t.Errorf("nonsense: %v", err)
	}
	theirs.Close()
	if err := <-ended; err != nil {
		t.Errorf("the line ended: %v", err)
	}
	if _, err := a.read(context.Background()); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("nobody is there: %v", err)
	}
}

// ErrBusy survives the connection.
func TestAgentBusy(t *testing.T) {
	a := &Agent{from: bufio.NewReader(strings.NewReader(`{"error":"no line: ` + experiment.ErrBusy.Error() + `"}` + "\n" + `{"error":"no line"}` + "\n"))}
	for _, busy := range []bool{true, false} {
		if _, err := a.read(context.Background()); err == nil || errors.Is(err, experiment.ErrBusy) != busy || !strings.HasPrefix(err.Error(), "no line") {
			t.Errorf("busy %v: %v", busy, err)
		}
	}
}

// An environment whose guest has died is closed and not used again. One whose guest only refused a request stays.
func TestForget(t *testing.T) {
	c := experiment.Cell{Setting: experiment.GuestRXE, Transport: experiment.TCP, Tool: "tcp_lat", Pairs: 1}
	closed := 0
	a := &Agent{to: io.Discard, from: bufio.NewReader(strings.NewReader(`{"error":"no"}` + "\n")), close: func() {}}
	all := &Environments{Lab: &Lab{}, accounted: true, kept: map[string]*Environment{environmentName(c): {Guest: a, Close: func() { closed++ }}}}
	for _, want := range []int{0, 1} {
		err := all.With(t.Context(), c, func(p *Environment) error {
			_, err := p.Guest.Measure(t.Context(), c, 1)
			return err
		})
		if err == nil {
			t.Fatal("nobody measured, and nobody says so")
		}
		if closed != want || len(all.kept) != 1-want {
			t.Errorf("closed %d times, want %d; %d places are kept", closed, want, len(all.kept))
		}
	}
}
