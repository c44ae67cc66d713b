package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/testkit/testdaemon"
	"vrdma.dev/vrdma/verbs"
)

// serveVariable makes the test binary a server; its value is the daemon's socket.
const serveVariable = "VRDMA_KV_SERVE"

func TestMain(m *testing.M) {
	testdaemon.Main()
	if socket := os.Getenv(serveVariable); socket != "" {
		s := Service{Device: verbs.Options{Socket: socket}, Daemon: os.Getppid()}
		f := flag.NewFlagSet("serve", flag.ExitOnError)
		s.Flags(f)
		f.Parse(os.Args[1:])
		if err := s.Serve(context.Background(), os.Stdout); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// options parses a command line. The server is this binary.
func options(t *testing.T, socket string, args ...string) *Options {
	t.Helper()
	o := &Options{}
	f := flag.NewFlagSet("lab", flag.ContinueOnError)
	o.Flags(f)
	if err := f.Parse(args); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(serveVariable, socket)
	o.Device, o.Start = verbs.Options{Socket: socket}, []string{self}
	return o
}

// TestLab runs the experiment with all ways, mixes and sizes.
func TestLab(t *testing.T) {
	o := options(t, testdaemon.Spawn(t), "-operations", "40", "-mixes", "updates,reads,A,B,C", "-values", "8,4096",
		"-clients", "3", "-writers", "1", "-skew", "zipfian", "-keys", "50", "-json")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out bytes.Buffer
	if err := o.Run(ctx, &out, nil); err != nil {
		t.Fatal(err)
	}
	var rows []Row
	if err := json.Unmarshal(out.Bytes(), &rows); err != nil {
		t.Fatalf("%v:\n%s", err, &out)
	}
	if want := 2 * (3*5 - 1); len(rows) != want { // one-sided updates are RPCs
		t.Errorf("%d rows, want %d", len(rows), want)
	}
	for _, r := range rows {
		if r.Operations != 40 || r.Rate <= 0 || r.P50 <= 0 || r.P50 > r.P99 || r.P99 > r.P999 || r.Client <= 0 {
			t.Errorf("row %+v", r)
		}
		if r.Way != wayRead && r.Messages < 40 {
			t.Errorf("%s, %s: the server handled %d messages for 40 operations", r.Way, r.Mix, r.Messages)
		}
	}
}

// TestTable: the printed table has the expected columns.
func TestTable(t *testing.T) {
	o := options(t, testdaemon.Spawn(t), "-operations", "50", "-mixes", "reads")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out bytes.Buffer
	if err := o.Run(ctx, &out, nil); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"50 operations in each row, 1 client", "rpc", "read", "tcp", "For 50 one-sided reads the server handled no message at all."} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table does not say %q:\n%s", want, &out)
		}
	}
}

// TestWrongOptions: errors name the flag.
func TestWrongOptions(t *testing.T) {
	for _, args := range [][]string{
		{"-operations", "0"}, {"-clients", "0"}, {"-writers", "-1"}, {"-keys", "0"}, {"-skew", "some"},
		{"-values", "7"}, {"-values", "70000"}, {"-values", "many"}, {"-mixes", "D"}, {"-ways", "udp"},
	} {
		err := options(t, "", args...).Check()
		if err == nil || !strings.Contains(err.Error(), "-"+args[0]+" ") {
			t.Errorf("%q: %v", args, err)
		}
	}
}

// TestServerThatDoesNotStart: the failure is reported without waiting.
func TestServerThatDoesNotStart(t *testing.T) {
	o := options(t, "/nowhere/vrdma.sock")
	var out bytes.Buffer
	if err := o.Run(t.Context(), &out, nil); err == nil {
		t.Error("no error")
	}
	o.Start = []string{"/bin/echo"}
	if err := o.Run(t.Context(), &out, nil); err == nil || !strings.Contains(err.Error(), "did not start") {
		t.Errorf("a server that says something else: %v", err)
	}
}

// TestSmallServer: a server that is too small is rejected before the measurement.
func TestSmallServer(t *testing.T) {
	socket := testdaemon.Spawn(t)
	o := options(t, socket, "-keys", "10", "-operations", "10")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	at, stop, err := o.startServer(ctx, 64)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	var out bytes.Buffer
	for _, args := range [][]string{{"-keys", "11"}, {"-keys", "10", "-values", "65"}} {
		big := options(t, socket, append(args, "-server", at, "-operations", "10")...)
		if err := big.Run(ctx, &out, nil); err == nil || !strings.Contains(err.Error(), "start it with more") {
			t.Errorf("%q: %v", args, err)
		}
	}
	o.Server = at
	if err := o.Run(ctx, &out, nil); err != nil {
		t.Error(err)
	}
}
