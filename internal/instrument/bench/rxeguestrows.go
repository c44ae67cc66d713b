package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"vrdma.dev/vrdma/internal/instrument/rxeguest"
	"vrdma.dev/vrdma/internal/instrument/speedtable"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// guest boots a virtual machine whose kernel has rxe and measures part rxe in it: vrdma and the kernel's rxe on the same emulated
// processors.
func (t *Table) guest() part {
	return part{
		name: "guest", single: true,
		rows: rxeRows("in a guest: "),
		measure: func(ctx context.Context, rows []speedtable.Row) error {
			ctx, cancel := context.WithTimeoutCause(ctx, testbed.GuestLimit, testbed.Timeout(testbed.GuestLimit))
			defer cancel()
			if t.Source == "" {
				return errors.New("this needs the repository: name it with --source")
			}
			for _, tool := range rxeguest.Tools {
				if _, err := exec.LookPath(tool); err != nil {
					return fmt.Errorf("%s not found: run tools/install-deps test", tool)
				}
			}
			fmt.Fprintln(t.Progress, "  making the guest's image")
			image, err := rxeguest.Image(ctx, t.Source)
			if err != nil {
				return err
			}
			initramfs, err := t.Lab.GuestInitramfs(ctx, image, fmt.Sprintf("vrdma bench --only rxe --kernel-device %s --rounds %d --source '' --out '' -o json >\"$1\" 2>&1", testbed.GuestDevice, t.Rounds))
			if err != nil {
				return err
			}
			report, err := t.boot(ctx, image, initramfs)
			if err != nil {
				return err
			}
			if len(report.Rows) != len(rows) {
				return fmt.Errorf("the guest reported %d rows, want %d", len(report.Rows), len(rows))
			}
			for i := range rows {
				got := &report.Rows[i]
				rows[i].Ours, rows[i].Against, rows[i].Missing = got.Ours, got.Against, got.Missing
			}
			rows[0].Note = "the guest: " + report.Machine.String() + ", emulated"
			return nil
		},
	}
}

// boot runs the guest until it has sent its report, and stops it.
func (t *Table) boot(ctx context.Context, image, initramfs string) (*speedtable.Report, error) {
	m := rxeguest.Guest{
		Image: image, Initramfs: initramfs, CPUs: min(runtime.NumCPU(), 2), Memory: 768,
		// rxe is fastest with the largest frames. There is no other host.
		IP4: "10.77.0.2/24", IP6: "fd00:77::2/64", MTU: 9000, Network: "hubport,hubid=0",
		Device: testbed.GuestDevice, Program: testbed.GuestProgram, Line: "stdio,signal=off", Console: filepath.Join(t.Lab.Dir, "console"),
	}
	c := t.Lab.Command(ctx, m.Command()...)
	var diag strings.Builder
	c.Stderr = &diag
	// Its standard input stays open, else QEMU closes the serial port.
	in, err1 := c.StdinPipe()
	out, err2 := c.StdoutPipe()
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	defer in.Close()
	fmt.Fprintln(t.Progress, "  booting the guest")
	if err := c.Start(); err != nil {
		return nil, err
	}
	defer func() {
		c.Cancel()
		c.Wait() // it was killed
	}()
	report, err := receive(out, t.Progress)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		console, _ := os.ReadFile(m.Console) // an empty console is fine: QEMU says why
		return nil, fmt.Errorf("the guest: %w\n%s%s", err, diag.String(), testbed.LastLines(string(console), 8))
	}
	return report, nil
}

// receive copies progress until the report comes, which is JSON.
func receive(r io.Reader, progress io.Writer) (*speedtable.Report, error) {
	in := bufio.NewReader(r)
	for {
		if first, err := in.Peek(1); err != nil {
			return nil, fmt.Errorf("ended without a report: %w", err)
		} else if first[0] == '{' {
			break
		}
		line, err := in.ReadString('\n')
		if err != nil {
			return nil, fmt.Errorf("ended in the middle of %q: %w", line, err)
		}
		io.WriteString(progress, line)
	}
	report := &speedtable.Report{}
	if err := json.NewDecoder(in).Decode(report); err != nil {
		return nil, fmt.Errorf("reported something else than JSON: %w", err)
	}
	return report, nil
}
