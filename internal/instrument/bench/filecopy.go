package bench

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
)

// ParseCopy reads how many seconds it took from the last line of vrdma cp --verbose.
func ParseCopy(output string) (seconds float64, err error) {
	m := copied.FindStringSubmatch(output)
	if m == nil {
		return 0, fmt.Errorf("vrdma cp --verbose did not say what it copied, but:\n%s", lastLines(output, 5))
	}
	if seconds, err = strconv.ParseFloat(m[1], 64); err != nil || seconds <= 0 {
		return 0, fmt.Errorf("vrdma cp took %q seconds", m[1])
	}
	return seconds, nil
}

var copied = regexp.MustCompile(`(?m)^(?:vrdma: )?1 files, .* in ([0-9.]+) s: `)

// copyDriver copies a file from the page cache to a tmpfs.
var copyDriver = driver{
	commands: func(j *job) (server, client []string) {
		flags := []string{"--overwrite"}
		if j.cell.Transport == experiment.TCP {
			flags = append(flags, "--transport", "tcp")
		}
		at := j.ip() + ":" + j.listen()
		server = append([]string{j.route.Server.vrdma(), "cp", "--socket", j.route.Server.Socket, "--serve", filepath.Join(j.dir, "to"), "--public", "--write", "--listen", at}, flags...)
		client = append([]string{j.route.Client.vrdma(), "cp", "--socket", j.route.Client.Socket, "--quiet", "--verbose"}, flags...)
		return server, append(client, j.program, "rdma://"+at+"/copy-"+j.listen())
	},
	parse: func(j *job, output, _ string) (printed, error) {
		seconds, err := ParseCopy(output)
		if err != nil {
			return printed{}, err
		}
		to := filepath.Join(j.dir, "to", "copy-"+j.listen())
		info, err := os.Stat(to)
		if err != nil || info.Size() != int64(j.cell.Size) {
			return printed{}, fmt.Errorf("vrdma cp left no file of %d bytes: %v", j.cell.Size, err)
		}
		bytes := float64(info.Size())
		return printed{bytes: bytes, values: map[string]float64{experiment.Time: seconds, experiment.Bandwidth: bytes / seconds}}, os.Remove(to)
	},
	way: func(experiment.Cell) way { return own },
	prepare: func(_ context.Context, l *Lab, j *job) (err error) {
		if j.route.Server.far != nil || j.route.Server.box != "" {
			return fmt.Errorf("vrdma cp is not measured in setting %s by this version", j.cell.Setting)
		}
		j.dir = l.shared
		if j.dir == "" {
			if j.dir, err = os.MkdirTemp(sharedMemory, "vrdma-copies"); err != nil {
				return err
			}
			l.shared = j.dir
			if err := os.Mkdir(filepath.Join(j.dir, "to"), 0o755); err != nil {
				return err
			}
		}
		j.program = filepath.Join(j.dir, "from-"+j.size())
		if _, err := os.Stat(j.program); err == nil {
			return nil
		}
		f, err := os.Create(j.program)
		if err != nil {
			return err
		}
		_, err = io.CopyN(f, rand.Reader, int64(j.cell.Size))
		return errors.Join(err, f.Close())
	},
}
