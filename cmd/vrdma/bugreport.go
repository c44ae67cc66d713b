package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/daemon"
	"vrdma.dev/vrdma/internal/platform/launch"
)

func bugreportCommand(o *options) *cobra.Command {
	var out, config string
	c := &cobra.Command{
		Use:   "bugreport [-o FILE]",
		Short: "collect what a bug report needs in one archive",
		Long: `Writes a .tar.gz with versions, the machine's abilities, the daemon's state, events, declared
objects, configuration and the end of its log. It has names of programs, users, hosts and addresses.
It has no payload, no keys and no passwords: private key files, password files and the file of
--store-config are not read, and values that look like a secret are replaced. Read it before you send it.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			place, err := o.place()
			if err != nil {
				return err
			}
			if out == "" {
				out = "vrdma-bugreport-" + time.Now().UTC().Format("20060102-150405") + ".tar.gz"
			}
			f, err := os.OpenFile(out, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
			if err != nil {
				return lacks("%w", err)
			}
			if err := writeArchive(f, collect(place, config)); err != nil {
				f.Close()
				os.Remove(out)
				return err
			}
			if err := f.Close(); err != nil {
				return err
			}
			fmt.Fprintln(c.OutOrStdout(), out)
			return nil
		},
	}
	c.Flags().StringVarP(&out, "output", "o", "", "the archive, which must not exist (default: vrdma-bugreport-TIME.tar.gz)")
	c.Flags().StringVar(&config, "config", daemon.SystemConfig, "the daemon's configuration file")
	return c
}

// A part is a file of a bug report.
type part struct {
	name string
	text []byte
}

// partTime bounds each command of a bug report, and partSize its output.
const (
	partTime = 20 * time.Second
	partSize = 4 << 20
)

// collect makes the parts. A part that cannot be made says why: a report about a broken machine is still useful.
func collect(place launch.Place, config string) (out []part) {
	add := func(name string, text []byte, err error) {
		if len(text) > partSize {
			text = text[len(text)-partSize:]
		}
		if err != nil {
			text = append(text, ("\n[" + err.Error() + "]\n")...)
		}
		out = append(out, part{name, redact(text)})
	}
	self, err := os.Executable()
	if err != nil {
		self = "vrdma"
	}
	run := func(name string, argv ...string) {
		ctx, cancel := context.WithTimeout(context.Background(), partTime)
		defer cancel()
		text, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput()
		add(name, text, err)
	}
	ours := func(name string, args ...string) {
		run(name, append([]string{self, "--socket", place.Socket}, args...)...)
	}
	read := func(name, path string) {
		text, err := os.ReadFile(path)
		add(name, text, err)
	}
	ours("version.txt", "version")
	ours("doctor.txt", "doctor")
	ours("status.json", "status", "-o", "json")
	ours("impact.txt", "status", "--impact")
	ours("events.ndjson", "events", "-o", "json")
	ours("audit.ndjson", "audit", "-n", "1000", "-o", "json")
	ours("objects.yaml", "store", "export")
	ours("top.json", "top", "--once", "-o", "json")
	read("configuration.yaml", config)
	if s, err := protocol.QueryStatus(place.Socket); err == nil {
		proc := fmt.Sprintf("/proc/%d/", s.Pid)
		command, err := os.ReadFile(proc + "cmdline")
		add("daemon/cmdline", bytes.ReplaceAll(command, []byte{0}, []byte("\n")), err)
		for _, name := range []string{"status", "limits", "cgroup", "mountinfo"} {
			read("daemon/"+name, proc+name)
		}
	}
	if _, err := os.Stat(place.Log()); err == nil {
		read("daemon/log.txt", place.Log())
	}
	if _, err := exec.LookPath("journalctl"); err == nil {
		run("journal.txt", "journalctl", "--no-pager", "-u", "vrdma", "-n", "5000")
	}
	for _, path := range []string{"/etc/os-release", "/proc/version", "/proc/meminfo", "/proc/cpuinfo", "/proc/sys/kernel/yama/ptrace_scope", "/proc/sys/vm/max_map_count", "/proc/sys/vm/overcommit_memory"} {
		read("machine/"+strings.ReplaceAll(strings.TrimPrefix(path, "/"), "/", "-"), path)
	}
	if _, err := exec.LookPath("ip"); err == nil {
		run("machine/addresses.txt", "ip", "-o", "address")
	}
	return out
}

// Secrets in URLs and in assignments.
var (
	secretURL   = regexp.MustCompile(`(://)[^/@\s"']+@`)
	secretValue = regexp.MustCompile(`(?i)(password|passwd|secret|token|private[-_ ]?key)(["']?\s*[:=]\s*)("[^"\n]*"|'[^'\n]*'|[^\s,}]+)`)
	pemBlock    = regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)`)
)

// redact replaces what looks like a secret.
func redact(text []byte) []byte {
	text = pemBlock.ReplaceAll(text, []byte("[private key removed]"))
	text = secretURL.ReplaceAll(text, []byte("${1}[removed]@"))
	return secretValue.ReplaceAll(text, []byte("${1}${2}[removed]"))
}

// writeArchive writes the parts as an archive with one directory.
func writeArchive(w io.Writer, parts []part) error {
	z := gzip.NewWriter(w)
	t := tar.NewWriter(z)
	now := time.Now()
	for _, p := range parts {
		h := &tar.Header{Name: filepath.Join("vrdma-bugreport", p.name), Mode: 0o600, Size: int64(len(p.text)), ModTime: now, Format: tar.FormatPAX}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if _, err := t.Write(p.text); err != nil {
			return err
		}
	}
	if err := t.Close(); err != nil {
		return err
	}
	return z.Close()
}
