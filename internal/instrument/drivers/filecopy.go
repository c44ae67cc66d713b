package drivers

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"

	"vrdma.dev/vrdma/internal/instrument/experiment"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// ParseCopy reads the duration in seconds from the last line of vrdma cp --verbose.
func ParseCopy(output string) (seconds float64, err error) {
	m := copied.FindStringSubmatch(output)
	if m == nil {
		return 0, fmt.Errorf("vrdma cp --verbose did not say what it copied, but:\n%s", testbed.LastLines(output, 5))
	}
	if seconds, err = strconv.ParseFloat(m[1], 64); err != nil || seconds <= 0 {
		return 0, fmt.Errorf("vrdma cp took %q seconds", m[1])
	}
	return seconds, nil
}

var copied = regexp.MustCompile(`(?m)^(?:vrdma: )?1 files, .* in ([0-9.]+) s: `)

// copyDriver copies a file from the page cache to a tmpfs.
var copyDriver = Driver{
	Commands: func(j *Job) (server, client []string) {
		flags := []string{"--overwrite"}
		if j.Cell.Transport == experiment.TCP {
			flags = append(flags, "--transport", "tcp")
		}
		at := j.ServerIP() + ":" + j.portText()
		server = append([]string{j.Route.Server.Vrdma(), "cp", "--socket", j.Route.Server.Socket, "--serve", filepath.Join(j.Dir, "to"), "--public", "--write", "--listen", at}, flags...)
		client = append([]string{j.Route.Client.Vrdma(), "cp", "--socket", j.Route.Client.Socket, "--quiet", "--verbose"}, flags...)
		return server, append(client, j.program, "rdma://"+at+"/copy-"+j.portText())
	},
	Parse: func(j *Job, output, _ string) (ToolResult, error) {
		seconds, err := ParseCopy(output)
		if err != nil {
			return ToolResult{}, err
		}
		to := filepath.Join(j.Dir, "to", "copy-"+j.portText())
		info, err := os.Stat(to)
		if err != nil || info.Size() != int64(j.Cell.Size) {
			return ToolResult{}, fmt.Errorf("vrdma cp left no file of %d bytes: %v", j.Cell.Size, err)
		}
		bytes := float64(info.Size())
		return ToolResult{Bytes: bytes, Values: map[string]float64{experiment.Time: seconds, experiment.Bandwidth: bytes / seconds}}, os.Remove(to)
	},
	Launcher: func(experiment.Cell) testbed.Launcher { return testbed.VrdmaCommand },
	Prepare: func(_ context.Context, l *testbed.Lab, j *Job) (err error) {
		if j.Route.Server.Agent != nil || j.Route.Server.Container != "" {
			return fmt.Errorf("vrdma cp is not measured in setting %s by this version", j.Cell.Setting)
		}
		j.Dir = l.SharedDir
		if j.Dir == "" {
			if j.Dir, err = os.MkdirTemp(testbed.SharedMemory, "vrdma-copies"); err != nil {
				return err
			}
			l.SharedDir = j.Dir
			if err := os.Mkdir(filepath.Join(j.Dir, "to"), 0o755); err != nil {
				return err
			}
		}
		j.program = filepath.Join(j.Dir, "from-"+j.sizeText())
		if _, err := os.Stat(j.program); err == nil {
			return nil
		}
		f, err := os.Create(j.program)
		if err != nil {
			return err
		}
		_, err = io.CopyN(f, rand.Reader, int64(j.Cell.Size))
		return errors.Join(err, f.Close())
	},
}
