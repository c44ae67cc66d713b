package testbed

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"vrdma.dev/vrdma/internal/instrument/experiment"
	"vrdma.dev/vrdma/internal/instrument/rxeguest"
)

// bootTimeout is how long a guest may take to answer for the first time. Emulation is slow.
const bootTimeout = 4 * time.Minute

// guestImage returns the directory with the kernel of guests.
func (in *Environments) guestImage(ctx context.Context, setting string) (string, error) {
	if in.Source == "" {
		return "", fmt.Errorf("setting %s needs the repository, which makes the guests: name it with --source", setting)
	}
	for _, tool := range rxeguest.Tools {
		if _, err := exec.LookPath(tool); err != nil {
			return "", fmt.Errorf("%s not found: run tools/install-deps test", tool)
		}
	}
	return rxeguest.Image(ctx, in.Source)
}

// newRXEGuest boots a guest whose kernel has rxe. Both sides of a tool run in it: with the kernel's device and with vrdma's, on the
// same emulated processors.
func newRXEGuest(ctx context.Context, in *Environments, _ experiment.Cell) (*Environment, error) {
	image, err := in.guestImage(ctx, "guest-rxe")
	if err != nil {
		return nil, err
	}
	initramfs, err := in.Lab.GuestInitramfs(ctx, image, fmt.Sprintf(`vrdma bench agent --line "$1" --device %s >/dev/console 2>&1`, GuestDevice))
	if err != nil {
		return nil, err
	}
	m := rxeguest.Guest{
		Image: image, Initramfs: initramfs, CPUs: min(runtime.NumCPU(), 2), Memory: 768,
		IP4: "10.77.0.2/24", IP6: "fd00:77::2/64", MTU: 9000, Network: "hubport,hubid=0",
		Device: GuestDevice, Program: GuestProgram, Line: "stdio,signal=off", Console: filepath.Join(in.Lab.Dir, "agent-console"),
	}
	c := in.Lab.Command(ctx, m.Command()...)
	var said Transcript
	c.Stderr = &said
	to, err1 := c.StdinPipe()
	from, err2 := c.StdoutPipe()
	if err := errors.Join(err1, err2, c.Start()); err != nil {
		return nil, err
	}
	a := &Agent{vrdma: "/usr/bin/vrdma", to: to, from: bufio.NewReader(from)}
	a.close = sync.OnceFunc(func() {
		c.Cancel()
		c.Wait() // it was killed
	})
	timeout, cancel := context.WithTimeoutCause(ctx, bootTimeout, Timeout(bootTimeout))
	defer cancel()
	stop := context.AfterFunc(timeout, a.close)
	defer stop()
	if _, err := a.read(timeout); err != nil {
		a.close()
		console, _ := os.ReadFile(m.Console) // an empty console is fine: QEMU says why
		return nil, fmt.Errorf("the guest: %w\n%s%s", err, said.String(), LastLines(string(console), 8))
	}
	return &Environment{Guest: a, Close: a.close, Label: "a guest with 2 emulated processors"}, nil
}

const (
	GuestDevice  = "rxe_kernel" // not rxe0, which is vrdma's
	GuestProgram = "/usr/bin/measure"
	// GuestLimit is the limit for boot and measurement together. Emulation is slow.
	GuestLimit = 8 * time.Minute
)

// GuestInitramfs returns an initramfs with the image, the product and a command that the guest runs with its serial port as $1. The
// kernel unpacks concatenated archives.
func (l *Lab) GuestInitramfs(ctx context.Context, image, command string) (path string, err error) {
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
	if err := os.WriteFile(filepath.Join(root, GuestProgram), []byte(script), 0o755); err != nil {
		return "", err
	}
	path = filepath.Join(l.Dir, "initramfs")
	_, err = l.Run(ctx, "sh", "-c", `{ cat "$1" && cd "$2" && find . | cpio --quiet -o -H newc -R 0:0; } >"$3"`, "sh", filepath.Join(image, "initramfs"), root, path)
	return path, err
}

// libraries returns the paths that ldd printed.
func libraries(ldd string) []string {
	var paths []string
	for word := range strings.FieldsSeq(ldd) {
		if strings.HasPrefix(word, "/") {
			paths = append(paths, word)
		}
	}
	return paths
}

// merged returns the path of a file in the image, whose /lib is /usr/lib.
func merged(path string) string {
	if strings.HasPrefix(path, "/lib") {
		return "usr" + path
	}
	return strings.TrimPrefix(path, "/")
}
