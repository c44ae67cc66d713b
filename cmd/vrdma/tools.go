package main

import (
	"context"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// needTools returns an error that names the missing programs.
func needTools(names ...string) error {
	var missing []string
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return lacks("%s not found: run tools/install-deps build demo test bench", strings.Join(missing, ", "))
	}
	return nil
}

// inLab runs f in a lab of its own that is gone afterwards, also after Ctrl-C.
func inLab(as *syscall.Credential, f func(context.Context, *testbed.Lab) error) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return testbed.With(self, as, func(lab *testbed.Lab) error { return f(ctx, lab) })
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}
