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
	"time"

	"vrdma.dev/vrdma/internal/instrument/rxeguest"
)

const (
	guestDevice  = "rxe_kernel" // not rxe0: that is ours
	guestProgram = "/usr/bin/measure"
	// guestLimit bounds boot and measuring together; emulation is slow.
	guestLimit = 8 * time.Minute
)

// guest boots a virtual machine whose kernel has rxe and measures part rxe in it:
// vrdma and what it stands in for, on the same emulated processors.
func (t *Table) guest() part {
	return part{
		name: "guest", single: true,
		rows: rxeRows("in a guest: "),
		measure: func(ctx context.Context, rows []Row) error {
			ctx, cancel := context.WithTimeoutCause(ctx, guestLimit, tooLong(guestLimit))
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
			initramfs, err := t.Lab.extend(ctx, image, fmt.Sprintf("vrdma bench --only rxe --kernel-device %s --rounds %d --source '' --out '' -o json >\"$1\" 2>&1", guestDevice, t.Rounds))
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

// extend makes an initramfs of the image's and of the product, and of a command that is run in the guest with
// its line as $1. The kernel unpacks archives that follow one another.
func (l *Lab) extend(ctx context.Context, image, command string) (path string, err error) {
	root := filepath.Join(l.Dir, "guest")
	if err := os.MkdirAll(filepath.Join(root, "usr/bin"), 0o755); err != nil {
		return "", err
	}
	defer os.RemoveAll(root)
	files := map[string]string{"usr/bin/vrdma": l.Vrdma}
	for _, name := range products {
		path := filepath.Join(l.Dir, name)
		files["usr/bin/"+name] = path
		needs, err := l.Run(ctx, "ldd", path)
		if err != nil {
			return "", err
		}
		for _, need := range libraries(needs) {
			files[merged(need)] = need
		}
	}
	for to, from := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, to)), 0o755); err != nil {
			return "", err
		}
		if err := copyFile(from, filepath.Join(root, to)); err != nil {
			return "", err
		}
	}
	script := "#!/bin/sh\nexec " + command + "\n"
	if err := os.WriteFile(filepath.Join(root, guestProgram), []byte(script), 0o755); err != nil {
		return "", err
	}
	path = filepath.Join(l.Dir, "initramfs")
	_, err = l.Run(ctx, "sh", "-c", `{ cat "$1" && cd "$2" && find . | cpio --quiet -o -H newc -R 0:0; } >"$3"`, "sh", filepath.Join(image, "initramfs"), root, path)
	return path, err
}

// libraries are the paths that ldd printed.
func libraries(ldd string) []string {
	var paths []string
	for word := range strings.FieldsSeq(ldd) {
		if strings.HasPrefix(word, "/") {
			paths = append(paths, word)
		}
	}
	return paths
}

// merged is where a file is in the image, whose /lib is /usr/lib.
func merged(path string) string {
	if strings.HasPrefix(path, "/lib") {
		return "usr" + path
	}
	return strings.TrimPrefix(path, "/")
}

// boot runs the guest until it has reported, and ends it.
func (t *Table) boot(ctx context.Context, image, initramfs string) (*Report, error) {
	m := rxeguest.Machine{
		Image: image, Initramfs: initramfs, CPUs: min(runtime.NumCPU(), 2), Memory: 768,
		// The largest frames: rxe is fastest with them. Nobody is at the other end.
		IP4: "10.77.0.2/24", IP6: "fd00:77::2/64", MTU: 9000, Network: "hubport,hubid=0",
		Device: guestDevice, Program: guestProgram, Line: "stdio,signal=off", Console: filepath.Join(t.Lab.Dir, "console"),
	}
	c := t.Lab.command(ctx, m.Command()...)
	var diag strings.Builder
	c.Stderr = &diag
	// Its standard input stays open, or QEMU would close the line.
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
		console, _ := os.ReadFile(m.Console) // may be empty: then QEMU says why
		return nil, fmt.Errorf("the guest: %w\n%s%s", err, diag.String(), lastLines(string(console), 8))
	}
	return report, nil
}

// receive passes progress on until the report comes, which is JSON.
func receive(r io.Reader, progress io.Writer) (*Report, error) {
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
	report := &Report{}
	if err := json.NewDecoder(in).Decode(report); err != nil {
		return nil, fmt.Errorf("reported something else than JSON: %w", err)
	}
	return report, nil
}
