// The agent is the program that a guest runs for its test: it starts programs, passes on
// what they print and says how they ended. It is PID 1's successor, called with the serial
// line's device; what it says there is package talk's.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"vrdma.dev/vrdma/test/guest/talk"
)

// patience is how long the agent waits for a listener: the guest may be slow.
const patience = 3 * time.Minute

type agent struct {
	mu      sync.Mutex // guards all below
	out     *json.Encoder
	running map[int]*exec.Cmd
}

func main() {
	line, err := os.OpenFile(os.Args[1], os.O_RDWR, 0)
	if err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		os.Exit(1)
	}
	a := &agent{out: json.NewEncoder(line), running: map[int]*exec.Cmd{}}
	a.tell(talk.Event{Output: []byte("ready")})
	for in := json.NewDecoder(bufio.NewReader(line)); ; {
		var r talk.Request
		if err := in.Decode(&r); err != nil {
			fmt.Fprintln(os.Stderr, "agent: the line is closed:", err)
			os.Exit(1)
		}
		a.serve(&r)
	}
}

func (a *agent) serve(r *talk.Request) {
	switch {
	case r.Kill != 0:
		a.mu.Lock()
		if c := a.running[r.ID]; c != nil {
			syscall.Kill(-c.Process.Pid, syscall.Signal(r.Kill))
		}
		a.mu.Unlock()
	case r.Listen != 0:
		go a.listen(r.ID, r.Listen)
	case r.File != "":
		a.file(r)
	case len(r.Run) > 0:
		a.run(r.ID, r.Run)
	}
}

func (a *agent) tell(e talk.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.out.Encode(e); err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
	}
}

// exit is the last event about a request.
func (a *agent) exit(id, code int) { a.tell(talk.Event{ID: id, Exit: &code}) }

// printer passes a program's output on.
type printer struct {
	a  *agent
	id int
}

func (p *printer) Write(b []byte) (int, error) {
	p.a.tell(talk.Event{ID: p.id, Output: b})
	return len(b), nil
}

func (a *agent) run(id int, argv []string) {
	c := exec.Command(argv[0], argv[1:]...)
	out := &printer{a, id}
	c.Stdout, c.Stderr = out, out
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.Start(); err != nil {
		fmt.Fprintln(out, "agent:", err)
		a.exit(id, -1)
		return
	}
	a.mu.Lock()
	a.running[id] = c
	a.mu.Unlock()
	go func() {
		c.Wait()
		a.mu.Lock()
		delete(a.running, id)
		a.mu.Unlock()
		a.exit(id, c.ProcessState.ExitCode())
	}()
}

func (a *agent) file(r *talk.Request) {
	err := os.MkdirAll(filepath.Dir(r.File), 0o755)
	if err == nil {
		err = os.WriteFile(r.File, r.Content, 0o755)
	}
	if err != nil {
		a.tell(talk.Event{ID: r.ID, Output: []byte(err.Error())})
		a.exit(r.ID, 1)
		return
	}
	a.exit(r.ID, 0)
}

func (a *agent) listen(id, port int) {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if listens("/proc/net/tcp", port) || listens("/proc/net/tcp6", port) {
			a.exit(id, 0)
			return
		}
	}
	a.exit(id, 1)
}

// listens reads the kernel's table, because some servers accept only once.
func listens(table string, port int) bool {
	text, err := os.ReadFile(table)
	if err != nil {
		return false
	}
	want := fmt.Sprintf(":%04X", port)
	for line := range strings.Lines(string(text)) {
		const listen = "0A"
		f := strings.Fields(line)
		if len(f) > 3 && f[3] == listen && strings.HasSuffix(f[1], want) {
			return true
		}
	}
	return false
}
