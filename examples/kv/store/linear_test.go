package store

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/testkit/testdaemon"
	"vrdma.dev/vrdma/verbs"
)

// A worker is a client in a process of its own, so that it can be killed. It makes operations at random
// and tells of each, before it begins and when it has ended, with the time of a clock that all
// processes share. What was begun and not ended when it is killed may have happened or not.
//
//	c TIME KEY STAMP       put begins; STAMP 0: get
//	r TIME STAMP           the last one has ended; a get found STAMP, 0: the key was never written

const workerVariable = "VRDMA_KV_WORKER"

const (
	linearKeys  = 2 // few, so that workers collide
	linearValue = 4096
)

// clock reads CLOCK_MONOTONIC, which all processes of the machine share.
func clock() int64 {
	var ts unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return ts.Nano()
}

// fill repeats the stamp over the whole value, so that a mixture of two values is noticed.
func fill(value []byte, stamp uint64) {
	for i := 0; i+8 <= len(value); i += 8 {
		binary.LittleEndian.PutUint64(value[i:], stamp)
	}
}

var errMixture = errors.New("a mixture of values")

// stampOf returns the stamp of a value.
func stampOf(value []byte) (uint64, error) {
	if len(value) == 0 {
		return 0, nil
	}
	stamp := binary.LittleEndian.Uint64(value)
	for i := 0; i+8 <= len(value); i += 8 {
		if binary.LittleEndian.Uint64(value[i:]) != stamp {
			return 0, errMixture
		}
	}
	return stamp, nil
}

// worker runs in a process of its own: WAY SOCKET ADDRESS NUMBER OPERATIONS.
func worker() {
	f := strings.Fields(os.Getenv(workerVariable))
	number, err1 := strconv.Atoi(f[3])
	operations, err2 := strconv.Atoi(f[4])
	err := errors.Join(err1, err2)
	if err == nil {
		err = work(f[0], f[1], f[2], number, operations)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
}

// workTime is the time limit of a worker.
func workTime(operations int) time.Duration {
	return time.Minute + time.Duration(operations)*100*time.Millisecond
}

func work(way, socket, at string, number, operations int) error {
	ctx, cancel := context.WithTimeout(context.Background(), workTime(operations))
	defer cancel()
	c, err := connect(ctx, way, socket, at)
	if err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(uint64(number), 1))
	buf := make([]byte, linearValue)
	for i := range operations {
		key, stamp := random.Uint64N(linearKeys), uint64(0)
		if random.IntN(3) == 0 {
			stamp = uint64(number)<<32 | uint64(i+1)
		}
		// One write per line: a killed worker leaves complete lines.
		os.Stdout.WriteString(fmt.Sprintf("c %d %d %d\n", clock(), key, stamp))
		if stamp != 0 {
			fill(buf, stamp)
			_, err = c.Put(ctx, key, buf)
		} else {
			var n int
			if n, _, err = c.Get(ctx, key, buf); err == nil {
				stamp, err = stampOf(buf[:n])
			}
		}
		if err != nil {
			return err
		}
		os.Stdout.WriteString(fmt.Sprintf("r %d %d\n", clock(), stamp))
	}
	return nil
}

func connect(ctx context.Context, way, socket, at string) (Client, error) {
	if way == "tcp" {
		return DialTCP(ctx, at)
	}
	d, err := NewDialer(ctx, verbs.Options{Socket: socket})
	if err != nil {
		return nil, err
	}
	if way == "rpc" {
		return d.DialRPC(ctx, at)
	}
	return d.DialOneSided(ctx, at)
}

// An access is an operation of the checker's history.
type access struct {
	key   uint64
	write bool
	stamp uint64 // of a put
}

// register is the model: each key has its last put value.
var register = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		parts := make([][]porcupine.Operation, linearKeys)
		for _, o := range history {
			k := o.Input.(access).key
			parts[k] = append(parts[k], o)
		}
		return parts
	},
	Init: func() any { return uint64(0) },
	Step: func(state, input, output any) (bool, any) {
		a := input.(access)
		if a.write {
			return true, a.stamp
		}
		return output.(uint64) == state.(uint64), state
	},
	Equal:             func(a, b any) bool { return a == b },
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v: %v", input, output) },
}

// history converts the output of a worker to operations. An unfinished put may have happened at any time from its call to the end. An
// unfinished get is dropped.
func history(client int, told string, end int64) (ops []porcupine.Operation, err error) {
	var open *porcupine.Operation
	for line := range strings.Lines(told) {
		if !strings.HasSuffix(line, "\n") {
			break // killed in the middle
		}
		var at int64
		var key, stamp uint64
		switch line[0] {
		case 'c':
			if _, err := fmt.Sscanf(line, "c %d %d %d", &at, &key, &stamp); err != nil {
				return nil, err
			}
			open = &porcupine.Operation{ClientId: client, Input: access{key, stamp != 0, stamp}, Call: at}
		case 'r':
			if _, err := fmt.Sscanf(line, "r %d %d", &at, &stamp); err != nil || open == nil {
				return nil, fmt.Errorf("%q: %v", line, err)
			}
			open.Output, open.Return = stamp, at
			ops = append(ops, *open)
			open = nil
		default:
			return nil, fmt.Errorf("a worker says %q", line)
		}
	}
	if open != nil && open.Input.(access).write {
		open.Output, open.Return = uint64(0), end
		ops = append(ops, *open)
	}
	return ops, nil
}

// A told is the output of a worker so far.
type told struct {
	text strings.Builder
	n    int // finished operations
}

// TestLinearizable: processes read and write two keys in all three ways at once. Some are killed and replaced. A checker then searches
// an order of the operations that explains all results.
func TestLinearizable(t *testing.T) {
	socket := testdaemon.Spawn(t)
	_, at := serve(t, socket, Config{Keys: linearKeys, MaxValue: linearValue})
	operations, rounds := 150, 3
	long := os.Getenv("VRDMA_TEST_ALL") != ""
	if long {
		operations, rounds = 2000, 10
	}
	var all []porcupine.Operation
	killed, unfinished, number := 0, 0, 0
	for range rounds {
		var wg sync.WaitGroup
		var mu sync.Mutex // guards the failures
		var problems []error
		workers := []string{"read", "read", "read", "rpc", "rpc", "tcp"}
		tolds := make([]*told, len(workers))
		first := number
		for i, way := range workers {
			number++
			tolds[i] = &told{}
			kill := 0
			if i%2 == 0 { // at some operation
				kill = 1 + rand.IntN(operations)
				killed++
			}
			wg.Go(func() {
				if err := runWorker(t, tolds[i], way, socket, at, first+i+1, operations, kill); err != nil {
					mu.Lock()
					defer mu.Unlock()
					problems = append(problems, fmt.Errorf("%s: %w", way, err))
				}
			})
		}
		wg.Wait()
		if err := errors.Join(problems...); err != nil {
			t.Fatal(err)
		}
		for i := range workers {
			ops, err := history(first+i, tolds[i].text.String(), clock())
			if err != nil {
				t.Fatal(err)
			}
			unfinished += len(ops) - tolds[i].n
			all = append(all, ops...)
		}
	}
	// An unfinished put may have happened until now, not only until the end of its round.
	end := clock()
	for i := range all {
		if a := all[i].Input.(access); a.write && all[i].Output == uint64(0) {
			all[i].Return = end
		}
	}
	t.Logf("%d operations of %d processes, %d of them killed; %d puts unfinished", len(all), number, killed, max(unfinished, 0))
	if len(all) < operations*rounds {
		t.Errorf("only %d operations", len(all))
	}
	switch porcupine.CheckOperationsTimeout(register, all, time.Minute) {
	case porcupine.Illegal:
		t.Error("no order of the operations explains what the clients saw")
	case porcupine.Unknown:
		// On a busy machine operations overlap more, and the checker has more orders to try.
		const unknown = "the checker has not found out in a minute"
		if long {
			t.Error(unknown)
		} else {
			t.Log(unknown)
		}
	}
}

// runWorker runs a worker to its end, or kills it after this many operations.
func runWorker(t *testing.T, to *told, way, socket, at string, number, operations, kill int) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(t.Context(), workTime(operations))
	defer cancel()
	cmd := exec.CommandContext(ctx, exe)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %s %d %d", workerVariable, way, socket, at, number, operations))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	r := bufio.NewReader(out)
	for {
		line, err := r.ReadString('\n')
		to.text.WriteString(line)
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if line[0] == 'r' {
			if to.n++; to.n == kill {
				cmd.Process.Signal(syscall.SIGKILL)
			}
		}
	}
	if err := cmd.Wait(); err != nil && kill == 0 {
		return fmt.Errorf("%w: %s", err, stderr.String())
	} else if err != nil && stderr.Len() > 0 {
		return errors.New(stderr.String())
	}
	return nil
}

// TestCheckerNotices: the checker rejects invalid histories.
func TestCheckerNotices(t *testing.T) {
	put := func(stamp uint64, call, end int64) porcupine.Operation {
		return porcupine.Operation{Input: access{0, true, stamp}, Call: call, Output: stamp, Return: end}
	}
	get := func(stamp uint64, call, end int64) porcupine.Operation {
		return porcupine.Operation{ClientId: 1, Input: access{key: 0}, Call: call, Output: stamp, Return: end}
	}
	for name, test := range map[string]struct {
		ops  []porcupine.Operation
		want bool
	}{
		"in order":      {[]porcupine.Operation{put(1, 0, 1), get(1, 2, 3)}, true},
		"at once":       {[]porcupine.Operation{put(1, 0, 9), get(0, 2, 3), get(1, 4, 5)}, true},
		"too old":       {[]porcupine.Operation{put(1, 0, 1), get(0, 2, 3)}, false},
		"too new":       {[]porcupine.Operation{get(1, 0, 1), put(1, 2, 3)}, false},
		"backwards":     {[]porcupine.Operation{put(1, 0, 9), get(1, 2, 3), get(0, 4, 5)}, false},
		"never written": {[]porcupine.Operation{put(1, 0, 1), get(7, 2, 3)}, false},
	} {
		if got := porcupine.CheckOperations(register, test.ops); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}
